"""Where the strategies of today keep their metrics."""

from dataclasses import dataclass, field


@dataclass
class Result:
    train_metrics_clientapp: dict = field(default_factory=dict)
    evaluate_metrics_clientapp: dict = field(default_factory=dict)
    evaluate_metrics_serverapp: dict = field(default_factory=dict)
