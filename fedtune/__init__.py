"""fedtune: hyperparameter search for heterogeneous federated learning, on Ray Tune."""

import os as _os

__version__ = "0.2.0"

# Ray reads its environment when it is imported, so this stands before any such import.
# Nothing calls home; one log file a trial instead of three (TensorBoard's alone halves the driver's throughput).
_settings = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}
for _name, _value in _settings.items():
    _os.environ.setdefault(_name, _value)
