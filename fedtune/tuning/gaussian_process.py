"""Optuna's Gaussian process, in one thread."""

from __future__ import annotations

from typing import Any

from optuna.samplers import GPSampler

from fedtune.core.threads import one_thread


class OneThreadGPSampler(GPSampler):
    """Optuna's sampler by a Gaussian process, limited to one thread; its suggestions are the same."""

    def sample_relative(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Optuna's suggestion, in one thread."""
        with one_thread():
            return super().sample_relative(*args, **options)
