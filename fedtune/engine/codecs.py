"""Codecs: how clients compress their updates u [m, P] before they send them, and how many bytes their messages take.

    fp16    rounded to half precision
    int8    per tensor   s ⌊u/s + r⌋,   s = max|u| / 127,   r uniform on [0, 1)                              unbiased
    qsgd    per tensor   ‖u‖₂ sign(u) ⌊a + r⌋ / L,   a = L |u| / ‖u‖₂,   L = 2^(bits - 1) - 1              unbiased
    sign    per tensor   (‖u‖₁ / p) sign(u) of its p numbers,   sign(0) = 1
    topk    the k = max(1, round(share · P)) largest |u| of the whole message; of equal ones the first
    randk   k numbers, drawn anew for each message;   times P/k and so unbiased if there is no error feedback

Alistarh et al., NeurIPS 2017, arXiv:1610.02132 (qsgd); Karimireddy et al., ICML 2019, arXiv:1901.09847 (error feedback:
a client adds what a codec left out, u - C(u), to its next update).  Numbers are packed, but no entropy code is assumed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce

import torch
from torch import Tensor

from fedtune.core.errors import Diverged
from fedtune.core.trees import NOTHING, Ragged, Size, Tree, size, take
from fedtune.experiment.scenario import OF_CODECS, Scenario

OF_ALL = ("fp16", "int8")  # these take all floating tensors of an upload, the others only updates of trained ones
SPARSE = ("topk", "randk")
Streams = Sequence[torch.Generator]  # the clients' own


def feeds_back(scenario: Scenario) -> bool:
    """Whether clients keep what their codec leaves out."""
    return "error_feedback" in OF_CODECS[scenario.compress] and scenario.error_feedback


def kept(scenario: Scenario, numbers: int) -> int:
    """k, how many of a message's P numbers a sparse codec sends."""
    return max(1, int(scenario.sent_share * numbers + 0.5))


def decoded(scenario: Scenario, u: Tensor, sizes: Sequence[int], streams: Streams) -> Tensor:
    """What the server reads of the clients' updates u [m, P].  sizes: of their tensors, in sum P.

    Diverged if half precision cannot hold a number.
    """
    codec, numbers = scenario.compress, u.shape[1]
    if codec in SPARSE:
        if (k := kept(scenario, numbers)) == numbers:
            return u
        places = largest(u, k) if codec == "topk" else drawn(u, k, streams)
        return torch.where(places, u if codec == "topk" or feeds_back(scenario) else u * (numbers / k), 0.0)
    parts = u.split(list(sizes), 1)
    if codec == "sign":
        return torch.cat([signs(t) for t in parts], 1)
    if codec == "fp16":
        if (half := u.half()).isinf().any():
            raise Diverged("diverged: a client sends a number beyond 65,504, the largest of --compress fp16")
        return half.to(u)
    uniform = torch.stack([torch.rand(numbers, generator=s, dtype=u.dtype) for s in streams]).to(u.device)
    pairs = zip(parts, uniform.split(list(sizes), 1), strict=True)
    return torch.cat([rounded(t, r) if codec == "int8" else levels(t, r, scenario.sent_bits) for t, r in pairs], 1)


def length(scenario: Scenario, sizes: Sequence[int], width: int) -> Size:
    """The size of one client's message.  sizes: as in `decoded`; width: the bytes of one of the run's numbers."""
    p, tensors = sum(sizes), len(sizes)
    k, bitmap = kept(scenario, p), -(-p // 8)
    if scenario.compress in SPARSE and k == p:
        return Size(p, 0, width * p)
    return {
        "fp16": Size(p, 0, 2 * p),
        "int8": Size(tensors, p, p + width * tensors),
        "qsgd": Size(tensors, p, -(-p * scenario.sent_bits // 8) + width * tensors),
        "sign": Size(tensors, 0, bitmap + width * tensors),
        # k, the numbers, and their places or a bitmap, whichever is shorter
        "topk": Size(k, 1 + k * (4 * k < bitmap), 4 + width * k + min(4 * k, bitmap)),
        "randk": Size(k, 1, 8 + width * k),  # with the seed of the places
    }[scenario.compress]


def sizes_of_each(scenario: Scenario, trained: Collection[str], up: dict[str, Tree], clients: int) -> list[Size]:
    """The size of each client's upload as it is sent.  trained: full names, of which `shared` is sent as an update."""
    shared, of_all = up.get("shared", {}), scenario.compress in ("none", *OF_ALL)
    updates = {} if of_all else {n: t for n, t in shared.items() if n in trained}
    numbers = [t[0].numel() for t in updates.values()]
    width = next((t.element_size() for t in updates.values()), 0)
    coded = length(scenario, numbers, width) if numbers else NOTHING
    rest = up | {"shared": {n: t for n, t in shared.items() if n not in updates}}
    return [coded.plus(_size(scenario, take(rest, slice(k, k + 1)))) for k in range(clients)]


def _size(scenario: Scenario, tree: Tree) -> Size:
    """The size of one client's other messages [1, …], of which a codec of all takes what is floating."""
    if isinstance(tree, dict):
        return reduce(Size.plus, (_size(scenario, t) for t in tree.values()), NOTHING)
    plain, width = size(tree), (tree.values if isinstance(tree, Ragged) else tree).element_size()
    if scenario.compress not in OF_ALL or not plain.floats:
        return plain
    coded = length(scenario, [plain.floats], width)
    return coded._replace(bytes=coded.bytes + plain.bytes - plain.floats * width)  # with a table's bitmap


def decoded_others(scenario: Scenario, tree: Tree, streams: Streams) -> Tree:
    """What the server reads of other messages [m, …], of which a codec of all takes what is floating."""
    if isinstance(tree, dict):
        return {n: decoded_others(scenario, t, streams) for n, t in tree.items()}
    values, present = tree if isinstance(tree, Ragged) else (tree, torch.ones(len(tree), device=tree.device).bool())
    if scenario.compress not in OF_ALL or not values.is_floating_point():
        return tree
    values = values.clone()
    for of_client, there, stream in zip(values, present, streams, strict=False):  # of nobody there are no streams
        sent = of_client[there]  # in draws too: how far a table is padded may depend on other clients
        if sent.numel():
            of_client[there] = decoded(scenario, sent.reshape(1, -1), [sent.numel()], [stream]).view_as(sent)
    return Ragged(values, present) if isinstance(tree, Ragged) else values


def rounded(u: Tensor, r: Tensor) -> Tensor:
    """Rounded to 255 levels, up or down at random.  r: uniform on [0, 1)."""
    s = u.abs().amax(1, keepdim=True) / 127
    return torch.where(s == 0, 0.0, (u / s + r).floor().clamp(-127, 127) * s)


def levels(u: Tensor, r: Tensor, bits: int) -> Tensor:
    """Rounded to L parts of the norm on each side of 0, up or down at random.  r: uniform on [0, 1)."""
    norm, most = torch.linalg.vector_norm(u, dim=1, keepdim=True), 2 ** (bits - 1) - 1
    level = (most * u.abs() / norm + r).floor().clamp(max=most)
    return torch.where(norm == 0, 0.0, norm * u.sign() * level / most)


def signs(u: Tensor) -> Tensor:
    """The signs, times the mean of the absolute values."""
    mean = u.abs().mean(1, keepdim=True)
    return torch.where(u < 0, -mean, mean)


def largest(u: Tensor, k: int) -> Tensor:
    """Where each row's k largest absolute values are [m, P]; of equal ones the first."""
    a = u.abs()
    least = a.kthvalue(a.shape[1] - k + 1, dim=1, keepdim=True).values
    places = a >= least
    for i in (places.sum(1) > k).nonzero()[:, 0].tolist():
        equal = (a[i] == least[i]).nonzero()[:, 0]
        places[i, equal[k - int((a[i] > least[i]).sum()) :]] = False
    return places


def drawn(u: Tensor, k: int, streams: Streams) -> Tensor:
    """k places of each row, drawn without replacement [m, P]."""
    places = torch.stack([torch.randperm(u.shape[1], generator=s)[:k] for s in streams]).to(u.device)
    return torch.zeros_like(u, dtype=torch.bool).scatter_(1, places, True)
