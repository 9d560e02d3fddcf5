"""Every way to look something up in tensors that are stacked per client: as each alone, or an error as alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedtune.core import vmap_rules  # noqa: F401 (whose rules these are)

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")  # of what has no rule at all
CLIENTS, SIZE, WIDTH = 3, 5, 4
TABLES = torch.randn(CLIENTS, SIZE, WIDTH, generator=torch.Generator().manual_seed(0))
Lookup = Callable[[Tensor, Tensor], Tensor]


class Own(nn.Embedding):
    """A user's own kind of embedding."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


def layer(net: nn.Module) -> Lookup:
    return lambda w, i: functional_call(net, {"weight": w}, (i,))


def columns(i: Tensor) -> Tensor:
    return i[:, None].expand(-1, WIDTH)


def ones(w: Tensor, i: Tensor) -> Tensor:
    return w.new_ones(len(i), WIDTH)


BLANK = torch.zeros(SIZE, WIDTH)
LOOKUPS: dict[str, Lookup] = {
    "nn.Embedding": layer(nn.Embedding.from_pretrained(BLANK)),
    "nn.Embedding, padding": layer(nn.Embedding.from_pretrained(BLANK, padding_idx=2)),
    "a subclass, padding": layer(Own.from_pretrained(BLANK, padding_idx=1)),
    "F.embedding": lambda w, i: F.embedding(i, w),
    "F.embedding, padding": lambda w, i: F.embedding(i, w, padding_idx=2),
    "F.embedding, the last is padding": lambda w, i: F.embedding(i, w, padding_idx=-1),
    "F.embedding, by frequency": lambda w, i: F.embedding(i, w, scale_grad_by_freq=True),
    "F.embedding, bounded": lambda w, i: F.embedding(i, w * 1, max_norm=1.0),
    "F.embedding, 32 bits": lambda w, i: F.embedding(i.int(), w),
    "F.embedding, several axes": lambda w, i: F.embedding(i[None, :, None], w),
    "F.embedding, one number": lambda w, i: F.embedding(i[1], w),
    "F.embedding of what was computed": lambda w, i: F.embedding(i, torch.cat([w, w.square()], 1)),
    "torch.embedding": lambda w, i: torch.embedding(w, i),
    "aten": lambda w, i: torch.ops.aten.embedding.default(w, i),
    "the same rows of all": lambda w, i: F.embedding(torch.tensor([0, 3, 3]), w, padding_idx=0) * i[0].clamp(0, 4),
    "one table for all": lambda w, i: F.embedding(i, TABLES[0]) * w.sum(),
    "nn.EmbeddingBag": lambda w, i: functional_call(nn.EmbeddingBag.from_pretrained(BLANK), {"weight": w}, (i[None],)),
    "F.embedding_bag, sum": lambda w, i: F.embedding_bag(i[None], w, mode="sum", padding_idx=2),
    "F.embedding_bag, offsets": lambda w, i: F.embedding_bag(i, w, torch.tensor([0, 1]), mode="max"),
    "index_select": lambda w, i: w.index_select(0, i),
    "gather": lambda w, i: w.gather(0, columns(i)),
    "take": lambda w, i: torch.take(w, i * WIDTH),
    "take_along_dim": lambda w, i: torch.take_along_dim(w, i[:, None], 0),
    "w[i]": lambda w, i: w[i],
    "w[:, i]": lambda w, i: w.T[:, i],
    "w[0][..., i]": lambda w, i: w.T[0][..., i],
    "one_hot": lambda w, i: F.one_hot(i, SIZE).to(w) @ w,
    "index_add": lambda w, i: w.index_add(0, i, ones(w, i)),
    "index_copy": lambda w, i: w.index_copy(0, i, ones(w, i)),
    "index_fill": lambda w, i: w.index_fill(0, i, 3.0),
    "index_fill, the last axis": lambda w, i: w.T.index_fill(-1, i, 3.0),
    "index_fill_": lambda w, i: w.clone().index_fill_(0, i, 3.0),
    "index_put": lambda w, i: w.index_put((i,), ones(w, i), accumulate=True),
    "scatter": lambda w, i: w.scatter(0, columns(i), ones(w, i)),
    "scatter_add": lambda w, i: w.scatter_add(0, columns(i), ones(w, i)),
    "scatter_reduce": lambda w, i: w.scatter_reduce(0, columns(i), ones(w, i), "amax"),
    "put": lambda w, i: w.put(i * WIDTH, w.new_ones(len(i))),
    "nll_loss": lambda w, i: F.nll_loss(w.T[: len(i)].log_softmax(1), i),
    "cross_entropy": lambda w, i: F.cross_entropy(w.T[: len(i)], i, label_smoothing=0.1),
    "multi_margin_loss": lambda w, i: F.multi_margin_loss(w.T[: len(i)], i),
}  # fmt: skip
ASKED = {  # of each client: its numbers
    "its own": [[0, 2], [4, 2], [1, 1]],
    "past the end of the first": [[0, 7], [4, 2], [1, 1]],
    "past the end of the last": [[0, 2], [4, 2], [1, 6]],
    "negative": [[0, 2], [4, -1], [1, 1]],
    "far": [[0, 2], [4, 2], [1, -9]],
    "just past": [[0, 2], [4, 5], [1, 1]],
}


def alone(look_up: Lookup, k: int, i: Tensor) -> tuple[Tensor, Tensor] | None:
    """What client k looks up and the gradient; None where plain PyTorch has an error."""
    w = TABLES[k].clone().requires_grad_()
    try:
        found = look_up(w, i)
        return found.detach(), torch.autograd.grad(found.square().sum(), w)[0]
    except (IndexError, RuntimeError):
        return None


@pytest.mark.parametrize("name", LOOKUPS)
@pytest.mark.parametrize("asked", ASKED)
def test_a_lookup_that_is_stacked_is_that_of_each_client_alone(name: str, asked: str) -> None:
    look_up, ids = LOOKUPS[name], torch.tensor(ASKED[asked])
    each = [alone(look_up, k, i) for k, i in enumerate(ids)]
    w = TABLES.clone().requires_grad_()
    if None in [None if found is None else 0 for found in each]:
        with pytest.raises((IndexError, RuntimeError)):
            vmap(look_up)(w, ids)
        return
    values, slopes = (torch.stack(of) for of in zip(*(found for found in each if found), strict=True))
    found = vmap(look_up)(w, ids)
    torch.testing.assert_close(found.detach(), values)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), w)[0], slopes)


@pytest.mark.parametrize("name", [n for n in LOOKUPS if "mbedding" in n])
def test_a_gradient_that_client_code_takes_itself_is_its_own(name: str) -> None:
    def slope(w: Tensor, i: Tensor) -> Tensor:
        found: Tensor = grad(lambda w: LOOKUPS[name](w, i).square().sum())(w)
        return found

    ids = torch.tensor(ASKED["its own"])
    torch.testing.assert_close(vmap(slope)(TABLES, ids), torch.stack([slope(w, i) for w, i in zip(TABLES, ids)]))  # noqa: B905
    with pytest.raises((IndexError, RuntimeError)):
        vmap(slope)(TABLES, torch.tensor(ASKED["past the end of the first"]))


def test_tables_may_be_stacked_twice_and_a_sparse_gradient_is_the_same_numbers() -> None:
    ids = torch.tensor(ASKED["its own"])

    def rows(w: Tensor, i: Tensor, **options: Any) -> Tensor:
        return F.embedding(i, w, padding_idx=2, **options)

    both = vmap(vmap(rows))(TABLES[None].expand(2, -1, -1, -1), ids[None].expand(2, -1, -1))
    torch.testing.assert_close(both[1], vmap(rows)(TABLES, ids))
    slopes = [
        torch.autograd.grad(vmap(lambda w, i, s=s: rows(w, i, sparse=s))(w, ids).sum(), w)[0]
        for s in (False, True)
        for w in [TABLES.clone().requires_grad_()]
    ]
    torch.testing.assert_close(*slopes)
    with pytest.raises((IndexError, RuntimeError)):
        vmap(vmap(rows, (0, None)), (None, 0))(TABLES, torch.tensor(ASKED["negative"]))
