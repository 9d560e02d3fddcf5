"""What a worker of a Ray started here loads before it is asked for anything: `ray_start.SETTINGS` names this module."""

from fedtune.core.importing import quick_imports

with quick_imports():
    import fedtune.federated.simulation  # noqa: F401
