"""A model that `fedtune run --save MODEL.pt` kept, or a trial's last checkpoint, opened to be looked at.

    from fedtune.analysis import models
    model = models.load("MODEL.pt")                      # or models.of_trial("runs/NAME", "176b4d6b")
    model.features(), model.projections(), model.prototypes(), model.generated()       # each: Rows
    model.client_accuracies()                            # a row a client

The data are loaded and partitioned again, from the experiment's scenario and seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from fedtune.core import randomness
from fedtune.core.errors import UserError
from fedtune.core.terminal import several
from fedtune.core.trees import Ragged, take
from fedtune.engine import evaluation
from fedtune.engine import model_file as files
from fedtune.engine.simulation import STATE, Simulation
from fedtune.experiment import partitioning
from fedtune.experiment.algorithm import SAMPLERS, Model, parts
from fedtune.experiment.experiment import Experiment
from fedtune.nn.generators import generate
from fedtune.nn.mixtures import sample, unpack
from fedtune.runs import user_copies
from fedtune.runs.files import RunFiles
from fedtune.runs.logs import suggestions
from fedtune.trainables._generative import Generative
from fedtune.trainables.fedgenp import FedGenP
from fedtune.trainables.gfpl import GFPL
from fedtune.tuning.options.search import SearchOptions

SERVER = -1  # the owner of what belongs to no client


class Points(NamedTuple):
    """Points with what they are of.  values [N, D], labels [N], owners [N]: the client, or SERVER.

    clients, classes: all of them by name, in the order of their numbers; () where they have none.
    """

    values: np.ndarray
    labels: np.ndarray
    owners: np.ndarray
    clients: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    def client(self, number: int) -> str:
        """A client by its name, or number."""
        return "server" if number == SERVER else self.clients[number] if self.clients else str(number)

    def class_(self, number: int) -> str:
        """A class by its name, or number."""
        return self.classes[number] if self.classes else str(number)


class Saved:
    """A model of every client with its server, and the data that it was trained on."""

    def __init__(self, experiment: Experiment, simulation: Simulation) -> None:
        """simulation: in the state to be looked at."""
        self.experiment, self.simulation = experiment, simulation
        self.setup, self.state = simulation.setup, simulation.state

    def __repr__(self) -> str:
        """Which algorithm, scenario and round the model is of."""
        e = self.experiment
        return f"{e.algorithm} on {e.scenario.dataset}, seed {e.seed}, after {several(self.state.round, 'round')}"

    def evaluate(self) -> dict[str, float]:
        """The metrics of the round after which it was saved."""
        return evaluation.score(self.setup, self.state).row

    def features(self, split: str = "test") -> Points:
        """The features of each client's own rows (train, val or test), by its own body."""
        return self._of_rows(split, lambda m, x: m.body(x))

    def projections(self, split: str = "test") -> Points:
        """GFPL's normalised projections of the same rows; UserError if the model has no projection."""
        if not all("proj" in parts(g.net) for g in self.state.groups):
            raise self._lacks("no projection", "gfpl has one, unless dcs=False")
        return self._of_rows(split, lambda m, x: F.normalize(m.part("proj")(m.body(x))))

    def prototypes(self) -> Points:
        """The server's: a mean feature per class, or under GFPL the means of a class's components."""
        table = self.state.server.get("mixtures" if self._is(GFPL) else "protos")
        if not isinstance(table, Ragged):
            raise self._lacks("no prototypes at the server", "fedproto, fedtgp, fedsa, fedpa and gfpl have them")
        values = unpack(table.values).means if self._is(GFPL) else table.values
        classes = torch.arange(len(values)).view(-1, *[1] * (table.present.dim() - 1)).expand(table.present.shape)
        return self._named(values[table.present], classes[table.present])

    def anchors(self) -> Points:
        """FedSA's and FedFA's: a point per class."""
        if "anchors" not in self.state.server:
            raise self._lacks("no anchors", "fedsa and fedfa have them")
        anchors = self.state.server["anchors"]
        return self._named(anchors, torch.arange(len(anchors)))

    @torch.no_grad()
    def generated(self, each: int = 50, seed: int = 0) -> Points:
        """`each` generated features per class: draws from GFPL's P_G, or what a generator makes of noise.

        Under FedGenP `each` of every client's own generator.  Classes that nobody sent anything of are left out.
        """
        if self._is(GFPL):
            return self._drawn(each, seed)
        if not self._is(Generative):
            raise self._lacks("nothing to generate features with", "gfpl, fedgen, fedpa and fedgenp have")
        alg: Any = self.setup.algorithm
        server, classes, clients = self.state.server, self.setup.task.classes, self.setup.task.clients
        labels = server["counts"].sum(0).nonzero()[:, 0] if server["counts"].any() else torch.arange(classes)
        y, stream = labels.repeat_interleave(each), randomness.stream(seed, "generated")
        noise = SAMPLERS[alg.noise_law]((len(y), alg.noise_width), generator=stream)
        if not alg.personal:
            return self._named(generate(server["nets"], noise, y), y)
        assert isinstance(alg, FedGenP)
        xi = torch.randn(len(y), self.setup.task.features, generator=stream)
        features = [alg.imagine(take(server["nets"], k), noise, xi, y)[0] for k in range(clients)]
        return self._named(torch.cat(features), y.repeat(clients), torch.arange(clients).repeat_interleave(len(y)))

    @torch.no_grad()
    def client_accuracies(self) -> pd.DataFrame:
        """A row a client, by number and owner: classes (how many), rows, val_acc and test_acc of what counts."""
        out, f = [], self.setup.federation
        for k, m, down in self._clients():
            row: dict[str, Any] = {"client": k, "owner": f.owner(k)}
            for split in ("val", "test"):
                table = getattr(f, split)
                own = table.rows[k, : int(table.counts[k])]
                output = self.setup.algorithm.predict(m, f.x[own], down)
                scores = next(iter(output.values())) if isinstance(output, dict) else output
                row[f"{split}_acc"] = (scores.argmax(1) == f.y[own]).double().mean().item()
            train = f.y[f.train.rows[k, : int(f.train.counts[k])]]
            out.append(row | {"classes": len(train.unique()), "rows": len(train)})
        frame = pd.DataFrame(out, columns=["client", "owner", "classes", "rows", "val_acc", "test_acc"])
        return frame.sort_values("client", ignore_index=True)

    def _drawn(self, each: int, seed: int) -> Points:
        table, stream = self.state.server["mixtures"], randomness.stream(seed, "generated")
        mixture = unpack(table.values)
        mixture = mixture._replace(weights=mixture.weights * table.present)
        classes, width = len(table.present), mixture.means.shape[-1]
        eps = torch.rand(classes, each, generator=stream), torch.randn(classes, each, width, generator=stream)
        values, seen = sample(mixture, *eps), table.present.any(1)
        return self._named(values[seen].flatten(0, 1), torch.arange(classes)[seen].repeat_interleave(each))

    def _clients(self) -> Iterator[tuple[int, Model, dict]]:
        """Every client's number, model as it is scored, and what it would receive now."""
        alg, task = self.setup.algorithm, self.setup.task_in(self.state.round + 1)
        for g in evaluation.adapted(self.setup, self.state, self.state.groups):
            g.net.eval()
            down = alg.deployed(self.state.server, g.ids, task)
            tensors = g.tensors if alg.adapt(task) else g.tensors | alg.receive(down)
            for i, k in enumerate(g.ids.tolist()):
                yield k, Model(g.net, take(tensors, i)), take(down, i)

    @torch.no_grad()
    def _of_rows(self, split: str, make: Callable[[Model, Tensor], Tensor]) -> Points:
        f, parts = self.setup.federation, []
        table = getattr(f, split)
        for k, m, _ in self._clients():
            own = table.rows[k, : int(table.counts[k])]
            parts.append((make(m, f.x[own]), f.y[own], torch.full_like(own, k)))
        return self._named(*map(torch.cat, zip(*parts, strict=True)))

    def _named(self, values: Tensor, labels: Tensor, owners: Tensor | None = None) -> Points:
        """These points with the names of clients and classes; without owners they are the server's."""
        owners, f = torch.full_like(labels, SERVER) if owners is None else owners, self.setup.federation
        clients = tuple(map(f.owner, range(f.clients))) if f.owners else ()
        return Points(values.double().numpy(), labels.numpy(), owners.numpy(), clients, f.class_names)

    def _is(self, cls: type) -> bool:
        return isinstance(self.setup.algorithm, cls)

    def _lacks(self, what: str, who: str) -> UserError:
        return UserError(f"{self.experiment.algorithm} has {what}; {who}")


def load(path: str | Path, data_dir: str | None = None) -> Saved:
    """The model in a file of `fedtune run --save FILE`; UserError if it is none.

    >>> import fedtune
    >>> from fedtune.analysis import models
    >>> rows = fedtune.train("fedavg", "digits-w4", rounds=2, clients=4, save="model.pt")
    >>> models.load("model.pt")
    fedavg on digits, seed 0, after 2 rounds
    """
    experiment, config, state = files.read(Path(path))
    return _opened(experiment, config, state, data_dir)


def of_trial(run: str | Path, trial: str, seed: int = 0, data_dir: str | None = None) -> Saved:
    """The model in the last checkpoint of a search's trial; seed: which of --seeds-per-trial, from 0.

    UserError if its folder has none, as a trial writes checkpoints only as often as 3 % of its time allows.
    """
    run = Path(run)
    config = {s["trial"]: s["config"] for s in suggestions(run)}.get(trial)
    checkpoints = sorted(run.glob(f"*{trial}*/checkpoint_*/{seed}/{STATE}"))
    if config is None or not checkpoints:
        raise UserError(
            f"a trial's model is in its last checkpoint, but {run} has none of trial {trial}; train its "
            "configuration again with fedtune run --save"
        )
    record = RunFiles(run).record
    user_copies.restore(run, record)
    experiment = SearchOptions.from_record(record).experiment()
    state = torch.load(checkpoints[-1], weights_only=True, map_location="cpu")
    experiment = Experiment(**(vars(experiment) | {"device": "cpu", "seed": experiment.seed + seed}))
    return _opened(experiment, config, state, data_dir)


def _opened(experiment: Experiment, config: dict[str, Any], state: dict[str, Any], data_dir: str | None) -> Saved:
    data = partitioning.make(experiment.scenario, experiment.seed, data_dir)
    simulation = Simulation(experiment, config, data)
    simulation.load_state_dict(state)
    return Saved(experiment, simulation)
