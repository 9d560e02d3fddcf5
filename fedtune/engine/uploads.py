"""What clients send and keep at the end of a round: an algorithm's `upload` and `remember`, called with their rows.

If code uses the features of all training rows, `m.body(data.x)`, they are computed in advance the next time: stacked,
without padding and block by block, which gives the same bits faster.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedtune.core.draws import Draws, certain, streams_of
from fedtune.core.pure import is_known
from fedtune.core.trees import Tree, named, take, tree_map
from fedtune.data.federation import rows_by_class
from fedtune.engine.chunks import Part, bands_of, blocks_of, in_chunks, rows_of
from fedtune.engine.client_errors import among, each_client
from fedtune.engine.stacked_code import StackedRows
from fedtune.engine.state import Group, RunSetup
from fedtune.experiment import hooks
from fedtune.experiment.algorithm import Algorithm, Client, Data, Model, draw
from fedtune.experiment.phase import Reader


class ClientInputs(NamedTuple):
    """What clients received and tallied, and their scalars, with a client axis."""

    down: dict[str, Tree]
    tally: dict[str, Tree]
    client: Client


def sends_from_rows(algorithm: Algorithm) -> bool:
    """Whether clients use their rows when they send; shared parts need no pass over the data."""
    kind = type(algorithm)
    return kind.upload is not Algorithm.upload or kind.remember is not Algorithm.remember


@torch.no_grad()
def uploads(s: RunSetup, g: Group, inputs: ClientInputs, t: int) -> dict[str, Tree]:
    """What a group's clients send (`up`) and keep from now on (`kept`) in round t, from the algorithm's methods."""
    g.net.eval()
    (down, tally, clients), alg = inputs, s.algorithm
    remembers = type(alg).remember is not Algorithm.remember
    streams = s.streams(g.ids, "upload", t)
    noise_declared = hooks.noise(alg, alg.upload_noise(s.task))
    noise = [draw(noise_declared, stream, (), s.dtype) for stream in streams]
    eps = tree_map(lambda *ts: torch.stack(ts).to(s.federation.x.device), noise[0], *noise[1:])
    stackable = g.executor == "stack" and all(is_known(type(m).__module__) for m in g.net.modules())

    def one(tensors: dict[str, Tensor], data: Data, received: dict[str, Tree], z: dict[str, Tensor]) -> dict[str, Tree]:
        m = _WatchedModel(net=g.net, tensors=tensors, kept=data.client.kept, rows=data.x, features=z)
        up = alg.upload(m, data, received) if type(alg).upload is not Algorithm.upload else {}
        memory = alg.remember(m, data, received) if remembers else {}
        hooks.tree(alg, "upload", up, "what a client sends")
        hooks.tree(alg, "remember", memory, "what a client keeps")
        _REUSES[g.net] = m.uses_features and stackable
        return {"up": up, "kept": memory}

    draws, features = Draws(uploads, g.net), Draws(_features, g.net)

    def run(part: Part) -> dict[str, Tree]:
        draws.begin(lambda: streams_of([streams[i] for i in _places(g)[part].tolist()])())
        data = rows_of(s, s.federation.train, g, part)
        data = data._replace(eps=take(eps, part), tally=take(tally, part), client=take(clients, part))
        z = {"z": _features(s, g, part, features)} if _REUSES.get(g.net) else {}
        with among(g.ids[part]):
            return each_client(one, g.executor, take(g.tensors, part), data, take(down, part), z, draws=draws)

    result = certain(lambda: in_chunks(g, s.federation.train, run), draws, features)
    kept = _of_the_form(g.kept, result["kept"], alg) if remembers else g.kept
    return result | {"kept": kept}


@torch.no_grad()
def read(s: RunSetup, g: Group, down: Tree, code: Reader, streams: list[torch.Generator]) -> dict[str, Tensor]:
    """The tensors that a group's clients set before a phase, from their rows: `Phase.read`."""
    g.net.eval()
    draws, table = Draws(code, g.net), s.federation.train

    def one(tensors: dict[str, Tensor], data: Data, received: dict[str, Tree]) -> dict[str, Tensor]:
        changed = code(Model(g.net, tensors, data.client.kept), data, received)
        return hooks.set_tensors(code, changed, g.net, s.dtype, s.scenario.frozen)

    def run(part: Part) -> dict[str, Tensor]:
        draws.begin(lambda: streams_of([streams[i] for i in _places(g)[part].tolist()], "draws read")())
        data = rows_of(s, table, g, part)
        counts = rows_by_class(s.federation, g.ids[part])
        data = data._replace(client=data.client._replace(kept=take(g.kept, part), counts=counts))
        with among(g.ids[part]):
            return each_client(one, g.executor, take(g.tensors, part), data, take(down, part), draws=draws)

    return certain(lambda: in_chunks(g, table, run), draws)


_REUSES: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # whether client code used the features of all rows


class _WatchedModel(Model):
    """A client's model that records whether the features of all rows are used, or returns those computed in advance."""

    def __init__(self, *, net: nn.Module, tensors: dict[str, Tensor], kept: Tree, rows: Tensor, features: Tree) -> None:
        super().__init__(net, tensors, kept)
        self.rows, self.features, self.uses_features = rows, features.get("z"), False

    def body(self, x: Tensor) -> Tensor:
        """Features z [N, D]."""
        if x is not self.rows or torch.is_grad_enabled():
            return super().body(x)
        self.uses_features = True
        return super().body(x) if self.features is None else self.features


def _places(g: Group) -> Tensor:
    """The positions of a group's clients in it, which a `Part` selects from: on the device where their numbers lie."""
    return torch.arange(len(g.ids), device=g.ids.device)


def _features(s: RunSetup, g: Group, part: Part, draws: Draws) -> Tensor:
    """Features of some clients' training rows [k, N, D]; padding repeats a client's first row and is not used."""
    table, places = s.federation.train, _places(g)[part]

    def of_one(tensors: dict[str, Tensor], _: Tree, rows: dict[str, Tensor]) -> Tensor:
        return _body(Model(g.net, tensors), rows["x"])

    run = StackedRows(net=g.net, executor=g.executor, of_one=of_one, code=_body, key="features", draws=draws)
    features = torch.empty(0)
    for band, n, longest in bands_of(table.counts[g.ids], part):
        x = rows_of(s, table, g, band, n).x
        positions = torch.searchsorted(places, _places(g)[band])
        for rows in blocks_of(n, len(positions)) if x.device.type == "cpu" else [slice(0, n)]:
            with among(g.ids[band]):
                z = run(take(g.tensors, band), {}, {"x": x[:, rows]})
            if z.shape[:2] == (len(places), longest):
                return z
            features = features if len(features) else _empty([len(places), longest, *z.shape[2:]], z)
            features[positions, rows] = z
        features[positions, n:] = features[positions, :1]
    return features


def _body(m: Model, x: Tensor) -> Tensor:
    return m.body(x)


def _of_the_form(old: Tree, new: Tree, alg: Algorithm) -> Tree:
    """What clients remember; UserError unless it has the structure of what they kept before."""

    def form(tree: Tree) -> list[str]:
        return sorted(f"{n} {str(v.dtype)[6:]} {list(v.shape[1:])}" for n, v in named(tree).items())

    a, b = form(old), form(new)
    if a != b:
        raise hooks.wrong(
            alg,
            "remember",
            f"what keep returns, with the same names, shapes and types: {', '.join(a) or 'nothing'}",
            f"returns {', '.join(b) or 'nothing'}",
        )
    return new


def _empty(shape: list[int], like: Tensor) -> Tensor:
    """An empty tensor with another one's memory order: the last bits of later results depend on it."""
    axes = sorted(range(like.dim()), key=like.stride, reverse=True)
    return like.new_empty([shape[i] for i in axes]).permute(*(axes.index(i) for i in range(len(axes))))
