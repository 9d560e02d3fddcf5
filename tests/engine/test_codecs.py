"""Codecs against their definitions: bounds, means of many draws, and messages that are really packed."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedtune.core.trees import Ragged
from fedtune.engine.codecs import OF_ALL, decoded, decoded_others, kept, length, sizes_of_each
from fedtune.experiment.scenario import OF_CODECS, Scenario

CODECS = [codec for codec in OF_CODECS if codec != "none"]
NUMBERS = (1, 7, 8, 33, 1000)


def scenario(codec: str, **values: Any) -> Scenario:
    return Scenario(compress=codec, **values)


def streams(m: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(1000 * seed + k) for k in range(m)]


def updates(m: int, p: int) -> Tensor:
    return torch.randn(m, p, generator=torch.Generator().manual_seed(p), dtype=torch.float64)


def sizes_of(p: int) -> list[int]:
    return [p // 3, p - p // 3] if p > 2 else [p]


def bits(values: np.ndarray, width: int) -> bytes:
    """Whole numbers from 0 on, packed in so many bits each."""
    return np.packbits((values[:, None] >> np.arange(width)[::-1]) & 1).tobytes()


def unpacked(data: bytes, width: int, count: int) -> np.ndarray:
    return np.unpackbits(np.frombuffer(data, np.uint8))[: width * count].reshape(count, width) @ (
        1 << np.arange(width)[::-1]
    )


def over_the_wire(s: Scenario, u: Tensor, out: Tensor, sizes: list[int]) -> tuple[bytes, Tensor]:
    """A client's message, packed, and what the server reads of it alone."""
    p, real, n = len(u), u.numpy().dtype, out.numpy()
    parts, written = np.split(n, np.cumsum(sizes)[:-1]), np.split(u.numpy(), np.cumsum(sizes)[:-1])
    k = kept(s, p)
    if s.compress == "fp16" or (s.compress in ("topk", "randk") and k == p):
        message = n.astype(np.float16 if s.compress == "fp16" else real).tobytes()
        return message, torch.tensor(np.frombuffer(message, np.float16 if s.compress == "fp16" else real).astype(real))
    if s.compress in ("topk", "randk"):
        at: Any = np.flatnonzero(n)
        if s.compress == "randk":  # the seed gives the server the same places
            message = np.uint64(0).tobytes() + n[at].tobytes()
        else:
            places, bitmap = at.astype(np.uint32).tobytes(), np.packbits(n != 0).tobytes()
            message = np.uint32(k).tobytes() + n[at].tobytes() + min(places, bitmap, key=len)
            rest = message[4 + k * real.itemsize :]
            as_places = np.frombuffer(rest, np.uint32) if len(places) < len(bitmap) else None
            at = np.flatnonzero(unpacked(rest, 1, p)) if as_places is None else as_places
        head = 4 if s.compress == "topk" else 8
        read = np.zeros(p, real)
        read[at] = np.frombuffer(message[head : head + k * real.itemsize], real)
        return message, torch.tensor(read)
    most = 2 ** (s.sent_bits - 1) - 1
    scales = {
        "int8": [np.abs(t).max() / real.type(127) for t in written],
        "qsgd": [torch.linalg.vector_norm(torch.tensor(t)).numpy() for t in written],
        "sign": [np.abs(t[0]) for t in parts],
    }[s.compress]
    width = {"int8": 8, "qsgd": s.sent_bits, "sign": 1}[s.compress]
    per, offset = {"int8": (1, 127), "qsgd": (most, most), "sign": (1, 0)}[s.compress]
    pairs = list(zip(parts, scales, strict=True))
    if s.compress == "sign":
        whole = np.concatenate([(t > 0).astype(np.int64) for t in parts])
    else:
        whole = np.concatenate([np.rint(t / c * per).astype(np.int64) + offset for t, c in pairs])
    message = np.array(scales, real).tobytes() + bits(whole, width)
    c = np.frombuffer(message[: len(sizes) * real.itemsize], real).repeat(sizes)
    q = unpacked(message[len(sizes) * real.itemsize :], width, p).astype(real)
    return message, torch.tensor(
        c * (2 * q - 1) if s.compress == "sign" else c * (q - real.type(offset)) / real.type(per)
    )


@pytest.mark.parametrize("codec", CODECS)
def test_a_message_that_is_really_packed_has_the_counted_bytes_and_all_that_the_server_reads(codec: str) -> None:
    shares = (0.001, 0.02, 0.3, 1.0) if codec in ("topk", "randk") else (0.1,)
    of_bits = range(2, 9) if codec == "qsgd" else (4,)
    types = (torch.float32, torch.float64)
    for p, share, b, dtype in itertools.product(NUMBERS, shares, of_bits, types):
        s, sizes, u = scenario(codec, sent_share=share, sent_bits=b), sizes_of(p), updates(2, p).to(dtype)
        out = decoded(s, u, sizes, streams(2))
        for given, got in zip(u, out, strict=True):
            message, read = over_the_wire(s, given, got, sizes)
            assert len(message) == length(s, sizes, u.element_size()).bytes, (p, share, b, dtype)
            torch.testing.assert_close(read, got, rtol=0, atol=0)


@pytest.mark.parametrize("codec", ["topk", "randk"])
def test_the_whole_message_takes_the_bytes_of_none_and_is_left_as_it_is(codec: str) -> None:
    u = updates(3, 33)
    assert decoded(scenario(codec, sent_share=1.0), u, [33], streams(3)) is u
    assert length(scenario(codec, sent_share=1.0), [33], 4).bytes == 4 * 33


def test_topk_keeps_the_largest_and_of_equal_ones_the_first() -> None:
    s = scenario("topk", sent_share=0.5)
    u = torch.tensor([[1.0, -3.0, 1.0, 1.0, 2.0, -1.0], [0.0] * 6])
    assert decoded(s, u, [6], []).tolist() == [[1.0, -3.0, 0.0, 0.0, 2.0, 0.0], [0.0] * 6]
    out, u = decoded(s, updates(5, 1000), [1000], []), updates(5, 1000)
    assert ((out != 0).sum(1) == 500).all()
    assert ((u - out).square().sum(1) <= 0.5 * u.square().sum(1)).all()


def test_sign_loses_what_its_formula_says_and_zero_counts_as_positive() -> None:
    u, s = updates(4, 100), scenario("sign")
    lost = (u - decoded(s, u, [100], [])).square().sum(1)
    torch.testing.assert_close(lost, u.square().sum(1) - u.abs().sum(1).square() / 100)
    assert decoded(s, torch.tensor([[0.0, -2.0]]), [2], []).tolist() == [[1.0, -1.0]]


@pytest.mark.parametrize(
    ("codec", "values"),
    [
        ("int8", {}),
        *(("qsgd", {"sent_bits": b}) for b in (2, 4, 8)),
        ("randk", {"sent_share": 0.25, "error_feedback": False}),
    ],
)
def test_the_mean_of_many_draws_is_the_update(codec: str, values: dict[str, Any]) -> None:
    s, n, u = scenario(codec, **values), 10_000, updates(1, 16)
    drawn = decoded(s, u.expand(n, 16), [16], streams(n))
    error = drawn.std(0) / n**0.5
    assert ((drawn.mean(0) - u[0]).abs() <= 5 * error + 1e-12).all()
    if codec == "qsgd":
        most = 2 ** (s.sent_bits - 1) - 1
        lost, size = (drawn - u).square().sum(1).mean(), u.square().sum()
        assert lost <= min(16 / most**2, 4 / most) * size


def test_randk_is_scaled_only_without_feedback() -> None:
    u = updates(2, 40)
    fed, alone = (decoded(scenario("randk", error_feedback=f), u, [40], streams(2)) for f in (True, False))
    torch.testing.assert_close(alone, 10 * fed)
    assert ((fed != 0).sum(1) == 4).all()
    assert torch.equal(fed[fed != 0], u[fed != 0])


@pytest.mark.parametrize("codec", CODECS)
def test_zeros_stay_zeros(codec: str) -> None:
    assert (decoded(scenario(codec, sent_share=0.5), torch.zeros(2, 9), [4, 5], streams(2)) == 0).all()


@pytest.mark.parametrize("codec", OF_ALL)
def test_other_tensors_lose_little_and_of_a_table_only_present_entries_are_sent(codec: str) -> None:
    values, s = updates(3, 20).view(3, 5, 4), scenario(codec)
    present = torch.tensor([[True, False, True, True, False], [False] * 5, [True] * 5])
    given = values.where(present[..., None], torch.nan)  # an absent entry is never read
    table, width = decoded_others(s, Ragged(given, present), streams(3)), {"fp16": 2, "int8": 1}[codec]
    sent, scale = [z.bytes for z in sizes_of_each(s, (), {"t": Ragged(given, present)}, 3)], 8 * (codec == "int8")
    assert sent == [3 * 4 * width + 1 + scale, 1, 5 * 4 * width + 1 + scale]
    assert torch.equal(table.values.isnan(), given.isnan())
    assert (table.values - values).nan_to_num().abs().max() <= values.abs().max() / 127
    longer = Ragged(torch.cat([given, given[:, :2]], 1), torch.cat([present, torch.zeros(3, 2, dtype=torch.bool)], 1))
    assert torch.equal(decoded_others(s, longer, streams(3)).values[:, :5].nan_to_num(), table.values.nan_to_num())
    assert decoded_others(s, torch.full((1, 4), torch.nan), streams(1)).isnan().all()  # so that a run diverges
    assert decoded_others(s, values[:, 0, 0], streams(3)).shape == (3,)
    assert [z.bytes for z in sizes_of_each(s, (), {"one": values[:, 0, 0]}, 3)] == [2 if codec == "fp16" else 9] * 3
