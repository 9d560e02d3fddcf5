"""Records and contexts."""

from dataclasses import dataclass, field


class ConfigRecord(dict):
    pass


@dataclass
class Context:
    node_id: int
    node_config: dict
    state: dict = field(default_factory=dict)
    run_config: dict = field(default_factory=dict)
