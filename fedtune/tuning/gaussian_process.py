"""Optuna's Gaussian process, in one thread."""

from __future__ import annotations

from typing import Any

from optuna.samplers import GPSampler

from fedtune.core.threads import one_thread


class OneThreadGPSampler(GPSampler):
    """It suggests the same as Optuna's.

    Its matrices are small, and beside trials that keep the cores busy several threads take some eight times as long.
    Optuna 5.0 limits them where it fits and climbs; this is for the rest of a suggestion.
    """

    def sample_relative(self, *args: Any, **options: Any) -> dict[str, Any]:
        """As Optuna has it."""
        with one_thread():
            return super().sample_relative(*args, **options)
