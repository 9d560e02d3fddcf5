"""Training before scoring, if an algorithm's `adapt` asks for it: personal fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedtune.core.errors import Diverged
from fedtune.core.trees import Tree
from fedtune.engine import seed_stack
from fedtune.engine.engine import require_finite, train_group
from fedtune.engine.local_training import PhaseResult
from fedtune.engine.seed_stack import SeedStack, Work, by_plan
from fedtune.engine.state import Group, RunSetup, State, received
from fedtune.experiment import hooks, plans
from fedtune.experiment.algorithm import Phase

Groups = Mapping[int, Group]  # the groups of a run by position


def adapted(s: RunSetup, state: State, groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """A run's groups after adaptation, as new ones.  Raises Diverged."""
    (result,) = adapt_all(seed_stack.alone(s), {0: state}, {0: dict(enumerate(groups))}).values()
    if isinstance(result, Diverged):
        raise result
    return tuple(result.values())


def adapt_all(
    seeds: SeedStack, states: Mapping[int, State], groups: Mapping[int, Groups]
) -> dict[int, Groups | Diverged]:
    """Adapt the groups of several runs; returns each run's groups by position, or how it diverged."""
    results: dict[int, Groups | Diverged] = dict(groups)
    setups = {i: seeds.setups[i] for i in states}
    phases_by_run = {i: plans.adapting(s.algorithm, s.task_in(states[i].round + 1)) for i, s in setups.items()}
    for phases, runs in by_plan(phases_by_run) if any(phases_by_run.values()) else ():
        for place in dict.fromkeys(place for i in runs for place in groups[i]):
            group_by_run = {i: groups[i][place] for i in runs if place in groups[i]}
            works = {i: _received(setups[i], i, place, states[i], g) for i, g in group_by_run.items()}
            for i, g in _adapted(seeds, works, phases, states[runs[0]].round).items():
                run_groups = results[i]
                if not isinstance(run_groups, Diverged):
                    results[i] = g if isinstance(g, Diverged) else {**run_groups, place: g}
    return results


def _received(s: RunSetup, run: int, place: int, state: State, g: Group) -> Work:
    """A group's clients with what they would receive now."""
    down = hooks.broadcast(s.algorithm, "deployed", state.server, g.ids, s.task_in(state.round + 1))
    return Work(run, place, g._replace(tensors=received(s, g, down)), down)


@torch.enable_grad()
def _adapted(
    seeds: SeedStack, works: dict[int, Work], phases: tuple[Phase, ...], t: int
) -> dict[int, Group | Diverged]:
    """Each run's group after these phases, or how it diverged."""
    lost: dict[int, Group | Diverged] = {}
    for n, phase in enumerate(phases):

        def code(s: RunSetup, g: Group, down: Tree, n: int = n, phase: Phase = phase) -> PhaseResult:
            return train_group(s, g, down, phase, ("adapt", t + 1, n), t + 1)

        for w, result in zip(list(works.values()), seeds.run(list(works.values()), code), strict=True):
            try:
                if isinstance(result, Diverged):
                    raise result
                require_finite(t, seeds.setups[w.run].federation, w.g.ids, result.losses, result.tensors, {})
                works[w.run] = w._replace(g=w.g._replace(tensors=result.tensors))
            except Diverged as error:
                lost[w.run] = error
                del works[w.run]
    return {i: w.g for i, w in works.items()} | lost
