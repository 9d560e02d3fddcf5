"""Imported by every worker of a Ray started here before its first task; `ray_start.SETTINGS` names it."""

from contextlib import suppress

from fedtune.core.importing import quick_imports

with suppress(Exception), quick_imports():  # an error here comes again, and is reported, when a run needs the module
    import fedtune.engine.simulation  # noqa: F401
