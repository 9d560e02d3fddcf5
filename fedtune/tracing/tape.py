"""A piece of tensor code as a list of PyTorch operations, which runs without the Python code that led to them.

For a small net, choosing a step's operations costs as much as their arithmetic.  A `Tape` holds them as they
reach PyTorch's kernels, forward and backward.  A replay runs the same kernels on the same memory orders: the same bits.

Nothing is fused or reordered.  A view of a view becomes one view.  Views of fixed tensors, and results that depend only
on these, are computed once, results that are never read not at all.  Operands no longer needed are overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtune.tracing.recording import Captures, Line, Number, OperationRecorder, Slot, slots_in

Replay = Callable[..., tuple[Tensor | None, ...]]
Results = Sequence[Tensor | None]


class Untraceable(RuntimeError):
    """Code that cannot be replayed, because its operations depend on more than its arguments."""


class ReplayedLine(NamedTuple):
    """An operation that runs in every replay: its line, its code, the slots it reads and the slots it makes."""

    line: Line
    code: str
    reads: list[int]
    outs: list[int]


class Tape:
    """A recording of code with `fixed` and `fresh` arguments, as a function of these."""

    def __init__(
        self, recorder: OperationRecorder, fixed: int, fresh: int, *, moving: Sequence[int], results: Results
    ) -> None:
        """The first slots are the `fixed` tensors, which stay in place between replays, then the `fresh` ones.

        moving: the fixed tensors whose values change between replays. results: the tensors that a replay returns.
        Raises Untraceable for code that does more, or that changes tensors that are neither fixed nor its own.
        """
        if recorder.untraceable:
            raise Untraceable(recorder.untraceable)
        self._tensors, self._lines = recorder.tensors, recorder.lines
        self._inputs, self._fixed = fixed + fresh, fixed
        self._results = [None if t is None else recorder.slot(t) for t in results]
        self._constants, self._numbers = recorder.constants, len(recorder.numbers)
        self._find_views()
        self._copyless_lines = [line for i, line in enumerate(self._lines) if not self._is_spare_copy(i, line)]
        self._writes = {self._root[s] for line in self._copyless_lines for s in line.writes}
        if any(s in self._constants or fixed <= s < self._inputs for s in self._writes):
            raise Untraceable("it writes into a tensor that is neither given nor its own")
        self._moving = self._writes | set(moving)
        self._names: dict[str, Any] = {"as_strided": torch.as_strided}
        self._make = self._compiled()
        self.captures = recorder.captures()
        self.cost = 0.0  # seconds of the last comparison with the code
        self.replays, self.next_check = 0, 1  # replays so far, and the replay that is compared with the code
        del self._tensors, self._copyless_lines

    def bind(self, fixed: Sequence[Tensor], captures: Captures | None = None) -> Replay:
        """A replay on these fixed tensors, as a function of the fresh ones; given: the constants to use."""
        constants, numbers = captures or self.captures
        replay: Replay = self._make(*fixed, *constants, *numbers)
        return replay

    def fits(self, recorder: OperationRecorder, results: Results) -> bool:
        """Whether a new recording equals this tape, except for its constants and real numbers."""
        slots = [None if t is None else recorder.slot(t) for t in results]
        return (
            not recorder.untraceable
            and self._lines == recorder.lines
            and self._results == slots
            and self._constants == recorder.constants
            and self.captures.metadata() == recorder.captures().metadata()
        )

    def _find_views(self) -> None:
        """For every slot, find the root whose memory it shares, and the first slot that is the same view of it."""
        self._root = list(range(len(self._tensors)))
        self._equal = list(range(len(self._tensors)))
        slots = {self._metadata(s): s for s in range(self._inputs)}
        written_memory = {self._memory(s) for line in self._lines for s in line.writes}
        for line in self._lines:
            if (operand := self._unchanged(line, written_memory)) is not None:
                self._root[line.made[0]], self._equal[line.made[0]] = (self._root[operand], self._equal[operand])
                continue
            inputs = [s for s in slots_in((line.args, line.kwargs)) if self._tensors[s].numel()]
            for out in line.made:
                base = next((s for s in inputs if self._memory(s) == self._memory(out)), None)
                if base is not None:
                    self._root[out] = self._root[base]
                self._equal[out] = slots.setdefault(self._metadata(out), out)

    def _memory(self, slot: int) -> int:
        return self._tensors[slot].untyped_storage().data_ptr()

    def _unchanged(self, line: Line, written: set[int]) -> int | None:
        """The operand of a product with 1, as vmap's biases are, if neither it nor the product is written into."""
        if line.func is not _ATEN.mul.Scalar or type(line.args[1]) is not int or line.args[1] != 1:
            return None
        operand, out = line.args[0].number, line.made[0]
        if {self._memory(operand), self._memory(out)} & written or self._root[operand] in self._results:
            return None
        equal_order = self._tensors[operand].stride() == self._tensors[out].stride()
        return operand if equal_order and self._tensors[operand].dtype == self._tensors[out].dtype else None

    def _is_spare_copy(self, number: int, line: Line) -> bool:
        """Whether a line only copies a tensor, held and changed nowhere else, into a result, which it can be itself."""
        if line.func is not _ATEN.copy_.default or not isinstance(line.args[1], Slot):
            return False
        to, source = line.args[0].number, line.args[1].number
        roots = [self._root[s] for s in self._results if s is not None]
        written = [self._memory(s) for other in self._lines for s in other.writes]
        later = [self._memory(s) for other in self._lines[number + 1 :] for s in other.writes]
        own = self._root[source] >= self._inputs and self._root[source] not in (*self._constants, *roots)
        views = [s for s, root in enumerate(self._root) if root == to]
        a, b = ((t.dtype, t.shape, t.stride()) for t in (self._tensors[to], self._tensors[source]))
        sole = roots.count(to) == 1 and written.count(self._memory(to)) == 1 and self._memory(source) not in later
        if a != b or not own or not sole or any(self._equal[s] != to for s in views):
            return False
        for s in views:
            self._root[s], self._equal[s] = self._root[source], self._equal[source]
        return True

    def _metadata(self, slot: int) -> tuple[Any, ...]:
        t = self._tensors[slot]
        if t.is_conj() or t.is_neg():
            raise Untraceable("complex or negated views")
        return self._root[slot], t.dtype, t.shape, t.stride(), t.storage_offset()

    def _is_view(self, line: Line) -> bool:
        """Whether a line only makes views, each of which can be made from its root directly."""
        return not line.writes and all(
            self._root[s] != s
            and not self._is_fresh(self._root[s])
            and self._tensors[s].dtype == self._tensors[self._root[s]].dtype
            for s in line.made
        )

    def _is_fresh(self, slot: int) -> bool:
        return self._fixed <= slot < self._inputs

    def _reads(self, line: Line) -> list[int]:
        """The slots that a line reads, after equal views were merged."""
        if self._is_view(line):
            return [self._root[s] for s in line.made]
        return [self._equal[s] for s in slots_in((line.args, line.kwargs))]

    def _live(self) -> list[Line]:
        needed_slots = {self._equal[s] for s in self._results if s is not None}
        lines = []
        for line in reversed(self._copyless_lines):
            if line.writes or any(self._equal[s] == s and s in needed_slots for s in line.made):
                needed_slots.update(self._reads(line))
                lines.append(line)
        return lines[::-1]

    def _compiled(self) -> Callable[..., Replay]:
        """Split the lines into those that run once for the fixed tensors and those that run in every replay."""
        setup: list[str] = []
        replayed: list[ReplayedLine] = []
        available = {*range(self._fixed), *self._constants}  # what is there before a replay
        constant = available - self._moving  # slots with the same values in every replay
        for line in self._live():
            view, reads = self._is_view(line), self._reads(line)
            outs = [s for s in line.made if self._equal[s] == s]
            code = [self._view(s) for s in outs] if view else [self._call(line)]
            if view and set(reads) <= available:
                constant.update(s for s in outs if self._root[s] in constant)
            elif not view and not line.writes and set(reads) <= constant and not self._writes.intersection(outs):
                constant.update(outs)
            else:
                made = [[s] for s in outs] if view else [outs]
                replayed += [ReplayedLine(line, c, reads, slots) for c, slots in zip(code, made, strict=True)]
                continue
            setup += code
            available.update(outs)
        return self._function(setup, replayed, available)

    def _function(self, setup: list[str], replayed: list[ReplayedLine], available: set[int]) -> Callable[..., Replay]:
        """make(fixed …), which runs the former lines and returns replay(fresh …), which runs the latter."""
        results = [None if s is None else self._equal[s] for s in self._results]
        last_use = {s: i for i, a in enumerate(replayed) for s in (*a.reads, *a.outs)}
        last_use |= dict.fromkeys([s for s in (*available, *results) if s is not None], len(replayed))
        ends: dict[int, int] = {}  # root -> the line that needs its memory last
        for s, i in last_use.items():
            ends[self._root[s]] = max(ends.get(self._root[s], 0), i)
        body = []
        for i, (line, code, reads, outs) in enumerate(replayed):
            body.append(self._over(line, {s for s, end in ends.items() if end == i}) or code)
            dead = [s for s in {*reads, *outs} if last_use[s] == i]
            if dead:
                body.append("del " + ", ".join(f"t{s}" for s in sorted(dead)))
        returned = "".join("None, " if s is None else f"t{s}{'.clone()' if s in available else ''}, " for s in results)
        outer = [f"t{s}" for s in (*range(self._fixed), *self._constants)] + [f"n{i}" for i in range(self._numbers)]
        text = [f"def make({', '.join(outer)}):"]
        text += [f"    {code}" for code in setup]
        text += [f"    def replay({', '.join(f't{s}' for s in range(self._fixed, self._inputs))}):"]
        text += [f"        {code}" for code in body] + [f"        return ({returned})", "    return replay"]
        exec(compile("\n".join(text), "<tape>", "exec"), self._names)
        make: Callable[..., Replay] = self._names["make"]
        return make

    def _over(self, line: Line, dead: set[int]) -> str:
        """Code of an elementwise operation that overwrites an operand which is no longer needed; "" if it cannot."""
        operands = [a for a in line.args if isinstance(a, Slot)]
        for place, operand in enumerate(operands[: _ELEMENTWISE.get(line.func, 0)]):
            slot, out = self._equal[operand.number], line.made[0]
            root, others = (self._root[slot], [self._root[self._equal[a.number]] for a in operands if a != operand])
            before, after = (
                (t.shape, t.stride(), t.dtype, t.storage_offset()) for t in map(self._tensors.__getitem__, (slot, out))
            )
            if root in dead and root not in others and not self._is_fresh(root) and before == after and not line.kwargs:
                func = _named_in_place(line.func)
                operands_left = [self._operand(line, a) for i, a in enumerate(line.args) if i != place]
                if line.func is _ATEN.threshold_backward.default:
                    return f"t{out} = {self._name_of(func)}(t{slot}, {', '.join(operands_left)}, grad_input=t{slot})"
                return f"t{out} = {self._name_of(func)}({', '.join([f't{slot}', *operands_left])})"
        return ""

    def _view(self, slot: int) -> str:
        """Code that makes a view of its root; the storage offset of a fixed root may differ between calls."""
        root, t = self._root[slot], self._tensors[slot]
        begin = str(t.storage_offset())
        if root < self._fixed or root in self._constants:
            begin = f"t{root}.storage_offset() + {t.storage_offset() - self._tensors[root].storage_offset()}"
        return f"t{slot} = as_strided(t{root}, {tuple(t.shape)}, {t.stride()}, {begin})"

    def _call(self, line: Line) -> str:
        arguments = [self._operand(line, a) for a in line.args] + [
            f"{n}={self._literal(v)}" for n, v in line.kwargs.items()
        ]
        call = f"{self._name_of(line.func)}({', '.join(arguments)})"
        targets = ", ".join(f"t{s}" if s in line.made and self._equal[s] == s else "_" for s in line.outs)
        return f"{targets}{'' if line.single else ','} = {call}"

    def _operand(self, line: Line, value: Any) -> str:
        """Code of an argument; an elementwise operation gets a copy of one in another memory order than its result.

        Two orders in one loop take six times as long as a copy.
        """
        code = self._literal(value)
        if line.func not in _ELEMENTWISE or not isinstance(value, Slot):
            return code
        given, result = self._tensors[value.number], self._tensors[line.made[0]]
        same_kind = given.shape == result.shape and given.dtype == result.dtype and given.device.type == "cpu"
        if not same_kind or given.stride() == result.stride() or 0 in given.stride() or given.numel() < _WORTH_COPYING:
            return code
        empty, dtype = self._name_of(torch.empty_strided), self._name_of(result.dtype)
        return f"{empty}({tuple(result.shape)}, {result.stride()}, dtype={dtype}).copy_({code})"

    def _literal(self, value: Any) -> str:
        if isinstance(value, Slot):
            return f"t{self._equal[value.number]}"
        if isinstance(value, Number):
            return f"n{value.number}"
        if type(value) is list:
            return f"[{', '.join(map(self._literal, value))}]"
        if type(value) is tuple:
            return f"({''.join(f'{self._literal(v)}, ' for v in value)})"
        is_literal = value is None or type(value) in (bool, int, str)
        return repr(value) if is_literal else self._name_of(value)

    def _name_of(self, thing: Any) -> str:
        """A name for a function or a value that has no literal."""
        for name, value in self._names.items():
            if value is thing:
                return name
        name = f"k{len(self._names)}"
        self._names[name] = thing
        return name


_ATEN = torch.ops.aten
_WORTH_COPYING = 2**12  # numbers of an operand
# operations by elements, and how many of their first operands they may write over
_ELEMENTWISE = {
    _ATEN.add.Tensor: 2,
    _ATEN.mul.Tensor: 2,
    _ATEN.sub.Tensor: 1,
    _ATEN.div.Tensor: 1,
    _ATEN.relu.default: 1,
    _ATEN.threshold_backward.default: 1,
    _ATEN.neg.default: 1,
    _ATEN.scatter_add.default: 1,
}


def _named_in_place(func: Any) -> Any:
    """The same operation as one that writes over its first operand."""
    if func is _ATEN.threshold_backward.default:
        return _ATEN.threshold_backward.grad_input
    _, name = func._schema.name.split("::")
    return getattr(getattr(_ATEN, f"{name}_"), func._overloadname)
