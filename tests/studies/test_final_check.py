"""The final check's workers are started where a search's last trials leave CPUs idle."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from fedtune.studies import final_check, ray_tasks


def started_search(**what: Any) -> Any:
    given = {"trials": 4, "concurrent": 3, "final_seeds": 5, "address": None, "gpus": 0, "choosing": []} | what
    options = SimpleNamespace(final_seeds=given["final_seeds"], address=given["address"])
    plan = SimpleNamespace(trials=given["trials"], choosing=given["choosing"], options=options)
    return SimpleNamespace(plan=plan, gpus=given["gpus"], concurrent=given["concurrent"])


def trials(*over: bool) -> list[Any]:
    return [SimpleNamespace(is_finished=lambda over=over: over) for over in over]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    calls: list[None] = []
    monkeypatch.setattr(ray_tasks, "start_worker", lambda: calls.append(None))
    return calls


def test_a_worker_is_started_in_every_slot_that_no_trial_is_to_take(started: list[None]) -> None:
    ahead = final_check.WorkersAhead(started_search())
    three = trials(True, False, False)
    ahead.on_trial_complete(0, three, three[1])
    assert not started  # one is still to come
    four = trials(True, True, False, False)
    ahead.on_trial_complete(0, four, four[2])
    assert len(started) == 2  # one trial goes on
    ahead.on_trial_error(0, four, four[2])
    assert len(started) == 2
    last = trials(True, True, True, False)
    ahead.on_trial_complete(0, last, last[3])
    assert len(started) == 3


@pytest.mark.parametrize(
    ("what", "number"),
    [
        ({}, 3),
        ({"final_seeds": 1}, 2),
        ({"final_seeds": 0}, 0),
        ({"final_seeds": 0, "choosing": [1]}, 3),
        ({"gpus": 0.5}, 0),
        ({"address": "head:1"}, 0),
        ({"concurrent": 1}, 1),
    ],
)
def test_no_more_are_started_than_runs_will_take(started: list[None], what: dict[str, Any], number: int) -> None:
    over = trials(True, True, True, True)
    final_check.WorkersAhead(started_search(**what)).on_trial_complete(0, over, over[0])
    assert len(started) == number


@pytest.mark.usefixtures("one_ray")
def test_what_needs_a_cpu_is_run_by_a_worker_that_was_started_for_it() -> None:
    """Ray keeps one idle worker a CPU, and lets those of tasks without CPUs serve tasks with them."""

    def whose() -> int:
        return os.getpid()

    loaded = ray.get(ray.remote(num_cpus=0)(whose).remote())
    assert ray.get(ray.remote(num_cpus=1)(whose).remote()) == loaded
