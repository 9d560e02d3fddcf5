"""A tape gives what the code gave that was noted."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from fedtune.tracing.recording import OperationRecorder
from fedtune.tracing.tape import Tape, Untraceable

Code = Callable[..., Sequence[Tensor | None]]


def noted(code: Code, fixed: list[Tensor], fresh: list[Tensor], moving: Sequence[int] = ()) -> Tape:
    with (recorder := OperationRecorder([*fixed, *fresh])):
        results = code(*fixed, *fresh)
    return Tape(recorder=recorder, fixed=len(fixed), fresh=len(fresh), moving=moving, results=results)


def test_replay_on_other_tensors_is_the_code_on_them() -> None:
    def code(w: Tensor, x: Tensor) -> list[Tensor]:
        y = (x.T.T @ w.view(3, 4).T).relu()
        return [y, y.sum(0), w[1:3]]

    old, new = (torch.Generator().manual_seed(i) for i in (0, 1))
    tape = noted(code, [torch.randn(12, generator=old)], [torch.randn(5, 4, generator=old)], [0])
    w, x = torch.randn(12, generator=new), torch.randn(5, 4, generator=new)
    replay = tape.bind([w])
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(replay(x), code(w, x), strict=True))
        w += 1  # it stays in place, so what was made of it once is still a view of it


def test_forward_and_backward_are_noted() -> None:
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
    leaves = [p.detach().clone().requires_grad_() for p in net.parameters()]
    names = [n for n, _ in net.named_parameters()]

    def code(*given: Tensor) -> list[Tensor | None]:
        *mine, x = given
        for leaf in mine:
            leaf.grad = None
        loss = torch.func.functional_call(net, dict(zip(names, mine, strict=True)), (x,)).square().mean()
        loss.backward()
        return [loss.detach(), *(leaf.grad for leaf in mine)]

    tape = noted(code, leaves, [torch.randn(7, 6)], range(len(leaves)))
    x = torch.randn(7, 6)
    with torch.no_grad():
        for leaf in leaves:
            leaf -= 0.1
        replayed = tape.bind(leaves)(x)
    for a, b in zip(replayed, code(*leaves, x), strict=True):
        assert a is not None and b is not None and torch.equal(a, b)


def test_what_is_written_into_is_written_into_again() -> None:
    """Batch normalisation does not declare that it moves its running statistics."""

    def code(mean: Tensor, var: Tensor, count: Tensor, x: Tensor) -> list[Tensor]:
        count.add_(1)
        return [nn.functional.batch_norm(x, mean, var, training=True)]

    start = [torch.zeros(3), torch.ones(3), torch.zeros(())]
    tape = noted(code, [t.clone() for t in start], [torch.randn(8, 3)])
    ours, theirs, x = [t.clone() for t in start], [t.clone() for t in start], torch.randn(8, 3)
    replay = tape.bind(ours)
    for _ in range(2):
        assert torch.equal(replay(x)[0], code(*theirs, x)[0])  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_what_does_not_change_is_computed_once_and_its_result_may_be_changed() -> None:
    def code(still: Tensor, moving: Tensor, x: Tensor) -> list[Tensor]:
        return [still.exp() * x, moving.exp() * x, still.neg()]

    still, moving, x = torch.randn(4), torch.randn(4), torch.randn(4)
    replay = noted(code, [still, moving], [x], [1]).bind([still, moving])
    before = code(still, moving, x)
    still += 1
    moving += 1
    replay(x)[2].zero_()  # type: ignore[union-attr]
    for got, want in zip(replay(x), (before[0], code(still, moving, x)[1], before[2]), strict=True):
        assert torch.equal(got, want)  # type: ignore[arg-type]


def test_two_results_made_of_one_tensor_can_be_changed_each_by_itself() -> None:
    """A copy of a gradient is left out only where nobody else has what it copies."""

    def code(a: Tensor, x: Tensor) -> list[Tensor]:
        y = a * x
        one, two, three = (torch.empty_like(y).copy_(y * 1) for _ in range(3))
        return [one, two, three, y]

    a, x = torch.randn(3), torch.randn(3)
    found = noted(code, [a], [x], [0]).bind([a])(x)
    for i in range(4):
        found[i].add_(i)  # type: ignore[union-attr]
    for i, t in enumerate(found):
        assert t is not None and torch.equal(t, a * x + i)


def test_operands_in_another_order_give_the_same_in_the_same_order() -> None:
    """Large ones are copied first, which changes no bit of values and no stride of results."""

    def code(a: Tensor, b: Tensor, w: Tensor) -> list[Tensor]:
        z = (a + b.transpose(1, 2)) * w
        return [z, torch.relu(z.transpose(0, 1) - a.exp().transpose(0, 1).contiguous())]

    shapes = ((8, 32, 48), (8, 48, 32), (48,))
    tape = noted(code, [], [torch.randn(shape) for shape in shapes])
    given = [torch.randn(shape) for shape in shapes]
    for a, b in zip(tape.bind([])(*given), code(*given), strict=True):
        assert a is not None and torch.equal(a, b) and a.stride() == b.stride()


TABLE = torch.arange(30.0).view(10, 3)
FIRST, FIFTH = TABLE[0], TABLE[4]


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (lambda x: x + FIRST[None], lambda x: x + FIFTH[None], True),  # at another place in the table's memory
        (lambda x: x * torch.arange(0.0, 3.0)[None].sum(), lambda x: x * torch.arange(0.0, 5.0)[None].sum(), False),
        (lambda x: ((x > 0) * 1 + (x > 0) * 1).sum(), lambda x: ((x > 0) * True + (x > 0) * True).sum(), False),
        (lambda x: x.add(x), lambda x: x.add(0.5), False),
        (lambda x: x.add(0.25), lambda x: x.add(0.5), True),
        (lambda x: x * 0.5 + torch.tensor([0.5, 1.0, 2.0]), lambda x: x * 0.75 + torch.tensor([0.75, 1.0, 3.0]), True),
        (lambda x: x * 0.5 + torch.tensor([0.5, 1.0, 2.0]), lambda x: x + x, False),
    ],
)
def test_what_fits_gives_what_was_noted_with_other_numbers(
    first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor], same: bool
) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    tape = noted(lambda x: [first(x)], [], [x])
    with (recorder := OperationRecorder([x])):
        found = second(x)
    assert tape.fits(recorder, [found]) == same
    if same:
        (again,) = tape.bind([], recorder.captures())(x)
        assert again is not None and torch.equal(again, found)


@pytest.mark.parametrize(
    "code",
    [
        lambda a, x: [a + torch.rand(2)],
        lambda a, x: [a * x.sum().item()],
        lambda a, x: [a[x > 0]],
        lambda a, x: [a.add_(x), x.add_(1)][:1],
        lambda a, x: [_OWN.add_(x)],
    ],
    ids=["draws", "takes a number out", "a size by values", "writes into a batch", "keeps a state"],
)
def test_what_depends_on_more_than_its_tensors_is_refused(code: Code) -> None:
    with pytest.raises(Untraceable):
        noted(code, [torch.ones(2)], [torch.ones(2)])


_OWN = torch.zeros(2)
