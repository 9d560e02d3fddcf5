"""What a worker of a Ray started here imports before it is asked for anything: `ray_start.SETTINGS` names it."""

from contextlib import suppress

from fedtune.core.importing import quick_imports

with suppress(Exception), quick_imports():  # what fails here fails again, and is told, where a run needs it
    import fedtune.engine.simulation  # noqa: F401
