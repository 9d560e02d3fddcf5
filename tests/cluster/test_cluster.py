"""Searches on simulated clusters: a node dies; three nodes of two GPUs each are filled and never overfilled."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray import cloudpickle as pickle
from ray import tune
from ray._private.authentication import authentication_token_setup as tokens
from ray.cluster_utils import Cluster
from support.searches import assert_as_undisturbed, begin_search, started
from support.user_algorithms import fedproto_in, gone
from support.waiting import wait_for

from fedtune.cluster import gpu_share, ray_internals
from fedtune.cluster import ray_start as clusters
from fedtune.commands import search
from fedtune.core.budget import Budget
from fedtune.core.errors import UserError
from fedtune.engine import simulation
from fedtune.engine.built_in import ENGINE
from fedtune.experiment import partitioning
from fedtune.runs import logs, tables
from fedtune.tuning import driver, plan, schedulers
from fedtune.tuning.options import arguments
from fedtune.tuning.options.search import SearchOptions
from fedtune.tuning.plan import StartedSearch
from fedtune.tuning.space import Space
from fedtune.tuning.trainable import FederatedTrainable


@contextmanager
def headed() -> Iterator[Cluster]:
    """A cluster of one node with one CPU, on loopback; gone afterwards with all of its processes.

    It asks for the user's token, as what `ray start` starts does where there is one.
    """
    tokens.enable_token_auth_by_default()
    tokens.ensure_token_if_auth_enabled()
    with ray_internals.patient(clusters.PATIENCE):  # a busy machine's nodes take longer than Ray's 30 s
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        yield made
        made.shutdown()


@pytest.fixture
def cluster(no_ray: None) -> Iterator[Cluster]:
    """That.  What a process starts that is connected to another Ray lets nobody in: its driver waited for ever."""
    with headed() as made:
        yield made


@pytest.mark.long
def test_a_dead_nodes_trials_go_on_elsewhere_bit_for_bit(cluster: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    """Two nodes of one CPU, a trial on each; one dies after some rounds, and all goes on on the other.

    The algorithm is the user's own file, gone as soon as the search has begun: no node can read it.
    """
    second = cluster.add_node(num_cpus=1)
    file = fedproto_in(tmp_path)
    process = begin_search(tmp_path, "--address", cluster.address, "--algo", str(file))
    run = tmp_path / "run"
    try:
        wait_for(lambda: process.poll() is not None or (run / "run.json").exists())
        gone(file)
        wait_for(lambda: process.poll() is not None or sum(len(rows) >= 4 for rows in logs.logged(run).values()) > 1)
        assert process.poll() is None, process.communicate()[0]
        cluster.remove_node(second, allow_graceful=False)
        out, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, out
    assert "2 at once" in out
    assert out.count("note: Ray lost the node") <= 1 and "marked dead" not in out and "Raylet is" not in out, out
    assert_as_undisturbed(run, undisturbed)


# ---- logical GPUs: Ray counts them, nothing here computes on one


@contextmanager
def connected_to(nodes: int) -> Iterator[Cluster]:
    """This process as a driver of nodes of two GPUs each, beside a head without any."""
    with headed() as made:
        for _ in range(nodes):
            made.add_node(num_cpus=1, num_gpus=2, object_store_memory=100 * 2**20)
        with clusters.connected(made.address, 0.2, 0.5, dashboard=False) as fits:
            assert fits == 4 * nodes
            yield made


@pytest.fixture
def gpus(no_ray: None) -> Iterator[Cluster]:
    with connected_to(1) as made:
        yield made


@pytest.fixture
def three(no_ray: None) -> Iterator[Cluster]:
    with connected_to(3) as made:
        yield made


def planned(cluster: Cluster, folder: Path, more: str) -> plan.SearchPlan:
    """A search on GPUs."""
    given = f"--storage-path {folder} --name run --address {cluster.address} --cpus-per-trial 0.2 {more}"
    p = plan.make(SearchOptions(**arguments.given(search.parser().parse_args(given.split()), SearchOptions)))
    assert p.workload.device == "cuda"
    return p


def on_cpu(s: StartedSearch) -> StartedSearch:
    """Its trials compute on the CPU."""
    return dataclasses.replace(s, workload=dataclasses.replace(s.workload, device="cpu"))  # type: ignore[type-var]


def waiting(folder: Path) -> type[tune.Trainable]:
    """A trial that writes down where it is and waits for a word; light, as 12 of them run at once.

    (Made in here so that it travels by value: a worker knows nothing of this file.)
    """

    class Waiting(tune.Trainable):
        def setup(self, config: dict, data: Any, **rest: Any) -> None:
            self.data = data

        def reset_config(self, new_config: dict) -> bool:
            return True

        def save_checkpoint(self, checkpoint_dir: str) -> dict:
            return {}

        def step(self) -> dict:
            here, share = ray.get_runtime_context(), self.trial_resources.required_resources["GPU"]
            where = {"gpu": [here.get_node_id(), *ray.get_gpu_ids()], "share": share}
            where |= {"owned": bool(self.data.flags.owndata), "sum": int(self.data.sum())}
            (folder / f"{self.trial_id}.begun").write_text(json.dumps(where))
            first = not list(folder.glob("first")) and not (folder / "first").mkdir()
            until = time.monotonic() + 600
            while not (folder / ("go" if first else "end")).exists() and time.monotonic() < until:
                time.sleep(0.05)  # the first to come ends early
            (folder / f"{self.trial_id}.ended").touch()
            return {"val_acc": 0.5, "round": 1, "complete": True, "done": True}

    return Waiting


@pytest.mark.long
def test_shares_fill_three_nodes_overfill_none_and_are_taken_again_at_once(
    three: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 trials at half a GPU are there at once; one ends, a 13th comes; data lie on each node once."""
    words = tmp_path / "words"
    words.mkdir()
    p = planned(three, tmp_path, "--algo local --gpus-per-trial 0.5 --trials 15 --searcher random --scheduler none")
    light = SimpleNamespace(trainer=ENGINE, name="local", rounds=1, seed=0, traits=p.workload.traits)
    monkeypatch.setattr(driver, "FederatedTrainable", waiting(words))
    stores: list[int] = []
    full: list[dict[str, Any]] = []
    counts: list[tuple[int, int]] = []

    def begun(wanted: int) -> None:
        wait_for(lambda: len(list(words.glob("*.begun"))) >= wanted)
        counts.append((len(list(words.glob("*.begun"))), len(list(words.glob("*.ended")))))

    def watch() -> None:
        wait_for(lambda: not ray.available_resources().get("GPU"))
        begun(12)
        for node in (node for node in ray.nodes() if node["Resources"].get("GPU")):
            at = node["NodeManagerAddress"], node["NodeManagerPort"]
            stores.append(ray._private.internal_api.node_stats(*at, False).store_stats.object_store_bytes_used)
        full.extend(json.loads(file.read_text()) for file in words.glob("*.begun"))
        (words / "go").touch()
        begun(13)
        (words / "end").touch()

    watching = threading.Thread(target=watch)
    watching.start()
    data = np.ones(20 * 2**20, dtype=np.uint8)
    grid, _ = driver.fit(dataclasses.replace(started(p, data, 12), workload=light))  # type: ignore[arg-type]
    watching.join()
    assert len(grid) == 15 and not grid.errors and counts == [(12, 0), (13, 1)]
    held = Counter(tuple(trial["gpu"]) for trial in full)  # a node and one of its GPUs, of which each has a half
    assert len(held) == 6 and {*held.values()} == {2} and {trial["share"] for trial in full} == {0.5}
    assert all(not trial["owned"] and trial["sum"] == 20 * 2**20 for trial in full)  # read where they lie
    assert all(20 * 2**20 <= stored < 30 * 2**20 for stored in stores), stores


def hungry() -> type[FederatedTrainable]:
    """Trials that run out of memory in round 3 unless they have as much of a GPU as their lam says."""

    class Hungry(FederatedTrainable):
        def _begin(self, config: dict) -> None:
            super()._begin(config)
            step = self.run.step

            def played() -> dict:
                if self.run.round >= 2 and self._gpus < config["lam"] / 10:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has none.")
                return step()

            self.run.step = played  # type: ignore[method-assign]

    return Hungry


@pytest.mark.long
def test_a_trial_out_of_gpu_memory_is_tried_once_more_with_twice_the_share(
    gpus: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "space.py").write_text("SPACE = [{'lam': 2.0}, {'lam': 5.0}, {'lam': 10.0}]")
    more = "--clients 4 --rounds 5 --trials 3 --gpus-per-trial 0.25 --scheduler none"
    p = planned(gpus, tmp_path, f"--algo fedproto --space {tmp_path}/space.py {more}")
    p.points[:] = [{"lam": lam} for lam in (2.0, 5.0, 10.0)]
    monkeypatch.setattr(driver, "FederatedTrainable", hungry())
    dealt = partitioning.make(p.workload.scenario, 0)
    s = on_cpu(started(p, [dealt], 2))
    grid, reported = driver.fit(s)
    trials = tables.trials_frame(grid, tables.rounds_frame(reported)).set_index("config/lam")
    assert trials["status"].to_dict() == {2.0: "finished", 5.0: "finished", 10.0: "failed"}
    assert re.search("CUDA out of memory.*; give a larger --gpus-per-trial than 0.5, or ", trials.loc[10.0, "reason"])
    errors = {lam: (tmp_path / "run" / f"fedproto-{t}" / "error.txt") for lam, t in trials["trial"].items()}
    failures = {lam: f.read_text().count("Failure #") if f.exists() else 0 for lam, f in errors.items()}
    assert failures == {2.0: 0, 5.0: 1, 10.0: 2}
    rows = tables.rounds_frame(reported)
    again = list(simulation.train(s.workload, {"lam": 5.0}, dealt))
    assert rows[rows["trial"] == trials.loc[5.0, "trial"]]["val_loss"].tolist() == [r["val_loss"] for r in again]
    assert capsys.readouterr().err.count("ran out of memory; it now gets 0.5 of a GPU instead of 0.25") == 2


def failed(folder: Path, gpu: float, *errors: str) -> Any:
    """A trial that has failed so."""
    texts = [f"Failure # {i + 1} (occurred at some time)\nray.exceptions.X\n{e}\n" for i, e in enumerate(errors)]
    (folder / "error.txt").write_text("".join(texts))
    trial = SimpleNamespace(
        trial_id="a",
        error_file=str(folder / "error.txt"),
        max_failures=3,
        num_failures=len(errors),
        placement_group_factory=tune.PlacementGroupFactory([{"CPU": 2, "GPU": gpu}]),
    )
    trial.update_resources = lambda more: setattr(trial, "placement_group_factory", more)
    return trial


@pytest.mark.parametrize("name", schedulers.SCHEDULERS)
def test_only_memory_is_answered_with_more_and_only_once(name: str, tmp_path: Path) -> None:
    memory, death = "torch.OutOfMemoryError: CUDA out of memory.", "The actor died unexpectedly"
    plain = schedulers.scheduler(name, Budget(limit=9), 3, Space({}, []))
    for begins, gpu, errors, then, most in (
        (0.4, 0.4, [memory], 0.8, 1),
        (0.4, 0.4, [death, memory], 0.8, 2),
        (0.4, 0.4, [memory, death], 0.4, 3),
        (0.4, 0.4, [death], 0.4, 3),
        (0.4, 0.8, [memory, memory], 0.8, 3),
        (0.6, 0.6, [memory], 1.0, 1),
        (1.0, 1.0, [memory], 1.0, 1),
        (2.0, 2.0, [memory], 2.0, 1),
    ):
        scheduler = pickle.loads(pickle.dumps(gpu_share.with_more_memory(plain, begins)))  # as a resumed search has it
        trial = failed(tmp_path, gpu, *errors)
        scheduler.on_trial_error(None, trial)
        assert trial.placement_group_factory.required_resources == {"CPU": 2, "GPU": then}, errors
        assert trial.max_failures == most
    scheduler.on_trial_error(None, SimpleNamespace(error_file="nowhere", trial_id="a"))  # swallowed
    on_cpus = gpu_share.with_more_memory(schedulers.scheduler("none", Budget(), 1, Space({}, [])), 0)
    assert "on_trial_error" not in vars(on_cpus)


def test_a_share_is_one_over_n_with_room_to_grow() -> None:
    gb = 10**9
    assert gpu_share.share(2.1 * gb, 139 * gb, 16) == 1 / 16  # the CPUs decide
    assert gpu_share.share(2.1 * gb, 24 * gb, 64) == 0.1111  # 24 / 2.52 = 9.5
    assert gpu_share.share(30 * gb, 24 * gb, 64) == gpu_share.share(1, 24 * gb, 0.5) == 1
    for n in range(1, 200):
        assert n * gpu_share.share(10 * gb / n / gpu_share.GROWTH * 0.999, 10 * gb, 999) <= 1


@pytest.mark.long
def test_a_probe_sets_the_share_before_the_search_begins(
    gpus: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def measured(experiment: Any, dealt: Any) -> tuple:
        assert len(ray.get_gpu_ids()) == 1 and len(dealt) == 1 and experiment.algorithm == "local"
        return 1.9, int(2.1e9), int(16.2e9)

    def too_much(experiment: Any, dealt: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    p = planned(gpus, tmp_path, "--algo local --gpus-per-trial auto")
    assert p.gpus == 1
    monkeypatch.setattr(gpu_share, "measure", measured)
    share, fits = gpu_share.measure_gpu_share(
        p.workload, [partitioning.make(p.workload.scenario, 0)], p.options.cpus_per_trial
    )
    assert capsys.readouterr().out == "one round took 1.9 s and 2.1 GB of 16 GB: 1/2 of a GPU a trial\n"  # 1 CPU for 2
    assert (share, fits) == (0.5, 4)
    monkeypatch.setattr(gpu_share, "measure", too_much)
    with pytest.raises(UserError, match="must fit into one GPU, but the first round .* ran out of GPU memory"):
        gpu_share.measure_gpu_share(p.workload, [], p.options.cpus_per_trial)
