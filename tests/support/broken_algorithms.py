"""User algorithms that each fail one check, as newcomers' do: `fedtune check FILE.py:NAME` names it.

Line numbers count: `# here` marks the line that is to be named.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedtune import Algorithm, hyper

_seen: list[int] = []
_cache_of_runs: list[int] = []  # here: CountsRuns


class Moments(NamedTuple):
    """What one server remembers."""

    mean: Tensor
    square: Tensor


@dataclass(frozen=True)
class Base(Algorithm):
    """FedAvg."""

    shared = ("body", "head")


@dataclass(frozen=True)
class Sound(Base):
    """FedNorm: nothing is broken here."""

    lam: float = hyper(0.1, 1e-4, 10.0, log=True, help="weight of the features' squared length")

    def loss(self, m, batch, down):
        z = m.body(batch.x)
        return F.cross_entropy(m.head(z), batch.y) + self.lam * (z**2).mean()


class Mistyped(Base):
    """A hook's name with one letter missing: nobody calls it."""

    def agregate(self, server, up, task):  # here
        return server


@dataclass(frozen=True)
class LogFromZero(Base):
    """A log scale that begins at 0."""

    lam: float = hyper(0.1, 0.0, 1.0, log=True, help="weight of nothing")  # here

    def loss(self, m, batch, down):
        return super().loss(m, batch, down) * (1 + self.lam)


@dataclass(frozen=True)
class WrongPreset(Base):
    """A preset outside the declared range."""

    lam: float = hyper(0.1, 0.01, 1.0, log=True, help="weight of nothing")

    presets = {"as_published": {"lam": 5.0}}  # here

    def loss(self, m, batch, down):
        return super().loss(m, batch, down) * (1 + self.lam)


class Stops(Base):
    """The server looks for what nobody sends."""

    def aggregate(self, server, up, task):
        return server | {"control": up["control"].mean(0)}  # here


class Infinite(Base):
    """The logarithm of 0."""

    def loss(self, m, batch, down):
        worst = m.head(m.body(batch.x)).relu().amin(1)
        return super().loss(m, batch, down) - (worst - worst).log().mean()  # here


class SinglePrecision(Base):
    """A constant that has neither the type nor the device of what it meets."""

    def loss(self, m, batch, down):
        z = m.body(batch.x)
        z = z @ torch.eye(z.shape[1])  # here
        return F.cross_entropy(m.head(z), batch.y)


class Overwrites(Base):
    """A client's message is made in place of its model's tensor."""

    def upload(self, m, data, down):  # here
        return {"bias": m["head.bias"].mul_(0.5)}


class ScalesRows(Base):
    """A batch normalised in place, which a second step on it would meet."""

    def loss(self, m, batch, down):  # here
        batch.x.sub_(batch.x.mean(0))
        return super().loss(m, batch, down)


class GlobalNoise(Base):
    """Noise of the server's from numpy's global stream."""

    def aggregate(self, server, up, task):
        new = super().aggregate(server, up, task)
        bias = new["shared"]["head.bias"]
        noise = np.random.normal(size=bias.shape)  # here
        return new | {"shared": new["shared"] | {"head.bias": bias + torch.tensor(noise).to(bias)}}


class Collects(Base):
    """Rounds counted in a list of the module."""

    def aggregate(self, server, up, task):
        new = super().aggregate(server, up, task)
        _seen.append(task.t)
        return new | {"shared": new["shared"] | {"head.bias": new["shared"]["head.bias"] / len(_seen)}}


class Counts(Base):
    """Rounds counted in the object."""

    def aggregate(self, server, up, task):
        object.__setattr__(self, "calls", getattr(self, "calls", 0) + 1)  # here
        return super().aggregate(server, up, task)


class KeepsInNet(Base):
    """Steps counted in the net."""

    def loss(self, m, batch, down):
        m.net.calls = getattr(m.net, "calls", 0) + 1
        return super().loss(m, batch, down) * (1 + 0.1 * m.net.calls)


class CountsRuns(Base):
    """Another in each run of a process."""

    def init(self, task):
        _cache_of_runs.append(1)  # here
        return {"runs": torch.tensor(float(len(_cache_of_runs)))}

    def aggregate(self, server, up, task):
        new = super().aggregate(server, up, task)
        bias = new["shared"]["head.bias"] + 0.01 * server["runs"]
        return new | {"shared": new["shared"] | {"head.bias": bias}, "runs": server["runs"]}


class Unseeded(Base):
    """A generator of numpy's that nothing seeds."""

    def aggregate(self, server, up, task):
        new = super().aggregate(server, up, task)
        bias = new["shared"]["head.bias"]
        noise = np.random.Generator(np.random.PCG64()).normal(size=bias.shape)
        return new | {"shared": new["shared"] | {"head.bias": bias + torch.tensor(noise).to(bias)}}


class CentresScores(Base):
    """Scores centred over the rows, of which some are padding."""

    def predict(self, m, x, down):  # here
        z = m.head(m.body(x))
        return z - z.mean(0)


class Branches(Base):
    """A Python branch on a number that a tensor holds."""

    def loss(self, m, batch, down):
        loss = super().loss(m, batch, down)
        return loss if loss.item() < 100 else loss / 2  # here


class Selects(Base):
    """Boolean indexing, whose shape depends on values."""

    def upload(self, m, data, down):
        return {"mean": m.body(data.x[data.mask]).mean(0)}  # here


class ForgetsMask(Base):
    """A mean over all rows, padding and all."""

    def upload(self, m, data, down):  # here
        return {"mean": m.body(data.x).mean(0)}

    def aggregate(self, server, up, task):
        return super().aggregate(server, up, task) | {"mean": up["mean"].mean(0)}


class ByPlace(Base):
    """What a client receives depends on its place in the message, not on who it is."""

    def broadcast(self, server, ids, task):  # here
        down = super().broadcast(server, ids, task)
        weight = 1 + 0.1 * torch.arange(len(ids)).to(down["shared"]["head.bias"])
        bias = down["shared"]["head.bias"] * weight[:, None]
        return down | {"shared": down["shared"] | {"head.bias": bias}}

    def deployed(self, server, ids, task):
        return super().broadcast(server, ids, task)


class OwnTuple(Base):
    """A server entry of a class that a checkpoint cannot hold."""

    def init(self, task):  # here
        return {"moments": Moments(torch.zeros(3), torch.zeros(3))}


class Undeclared(Base):
    """The server sends what `sends` does not name."""

    def broadcast(self, server, ids, task):  # here
        return super().broadcast(server, ids, task) | {"round": torch.full((len(ids),), task.t)}


class NoClientAxis(Base):
    """A server entry is sent for one client too many."""

    sends = ("means",)

    def init(self, task):
        return {"means": torch.zeros(3)}

    def broadcast(self, server, ids, task):  # here
        down = {"means": server["means"].expand(len(ids) + 1, 3)}
        return {"shared": super().broadcast(server, ids, task)["shared"]} | down


class CookedLedger(Base):
    """A figure of the ledger's name."""

    def report(self, server):  # here
        return {"comm_mb": 0.5}


class SendsRows(Base):
    """A client's first row leaves it."""

    def upload(self, m, data, down):  # here
        return {"example": data.x[0]}


@dataclass(frozen=True)
class Idle(Base):
    """A hyperparameter that nothing reads."""

    lam: float = hyper(0.1, 0.01, 1.0, log=True, help="weight of nothing")  # here


@dataclass(frozen=True)
class TooEarly(Base):
    """An effect in round 1 that is declared for round 2."""

    lam: float = hyper(0.1, 0.01, 10.0, log=True, first_round=2, help="weight of the loss")  # here

    def loss(self, m, batch, down):
        return super().loss(m, batch, down) * self.lam


class ReportsNothing(Base):
    """A figure that is no number."""

    def report(self, server):  # here
        return {"norm": float(server["shared"]["head.bias"].norm()) * float("inf")}


class TakesMedian(Base):
    """More than the mean of the clients' models."""

    releases = "mean"

    def aggregate(self, server, up, task):  # here
        return {"shared": {n: t.median(0).values for n, t in up["shared"].items()}}


class CountsClients(Base):
    """The number of clients is data."""

    releases = "mean"

    def aggregate(self, server, up, task):  # here
        shared, many = super().aggregate(server, up, task)["shared"], 0.01 * len(up["ids"])
        return {"shared": {n: t + many if t.is_floating_point() else t for n, t in shared.items()}}
