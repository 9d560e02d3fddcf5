"""The checks of algorithms, in the order in which they run: the first failure explains those that follow."""

from __future__ import annotations

from fedtune.conformance import declarations, exactness, messages, running
from fedtune.conformance.check import ConformanceCheck
from fedtune.conformance.subject import Subject

CHECKS: tuple[ConformanceCheck[Subject], ...] = (
    declarations.declarations,
    running.runs,
    running.finite,
    running.types,
    running.inputs,
    running.draws,
    running.own_state,
    messages.messages,
    running.scores,
    exactness.one_program,
    running.seed,
    exactness.recorded_steps,
    exactness.stack_equals_loop,
    exactness.grouping,
    exactness.checkpoint,
    exactness.one_mean,
    messages.rows_stay_home,
    declarations.first_effects,
    declarations.metrics,
)
