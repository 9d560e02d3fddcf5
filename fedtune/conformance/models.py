"""The checks of models: a body and a head that clients can train, stacked or one by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedtune import tracing
from fedtune.conformance import hints
from fedtune.conformance.check import ConformanceCheck, Note, RunFailed, Violation, check
from fedtune.core import randomness
from fedtune.core.about import page
from fedtune.core.draws import Draws
from fedtune.core.errors import UserError
from fedtune.core.process import Streams
from fedtune.core.terminal import one_line
from fedtune.core.trees import to_all
from fedtune.engine import executor_choice
from fedtune.engine.client_errors import Unstackable
from fedtune.engine.stacked_code import StackedStep
from fedtune.experiment.algorithm import Batch, Model
from fedtune.experiment.experiment import dtype_of, shape_of
from fedtune.experiment.scenario import Scenario
from fedtune.nn import architectures
from fedtune.nn.layers import cross_entropy
from fedtune.nn.net import Net, hook_of
from fedtune.user_code import user_errors

Result = TypeVar("Result")
ROWS, CLIENTS = 5, 3


class ModelSubject:
    """A model to check, made for the rows of a scenario's data set."""

    def __init__(self, name: str, scenario: Scenario) -> None:
        """name: of an architecture; the scenario gives the shape of a row, the classes and the features' width."""
        self.name = name
        (self.shape, self.classes), self.dtype = shape_of(scenario), dtype_of(scenario)
        self.features = scenario.features
        self.stacks = False  # the check "one program" sets it

    def net(self, seed: int = 0) -> Net:
        """The model with its draw of this seed, in evaluation mode."""
        net = architectures.build(self.name, self.shape, self.classes, self.features, seed)
        net.eval()
        return net

    def rows(self, n: int = ROWS, dtype: torch.dtype = torch.float32) -> Tensor:
        """Random rows of the data's shape: real numbers, or tokens."""
        generator = torch.Generator().manual_seed(0)
        if self.dtype.is_floating_point:
            return torch.randn(n, *self.shape, generator=generator).to(dtype)
        return torch.randint(2, (n, *self.shape), generator=generator)

    def labels(self) -> Tensor:
        """A class for each row."""
        return torch.arange(ROWS) % self.classes

    def call(self, run: Callable[[], Result]) -> Result:
        """Run the model's code and return its result; RunFailed if it raises."""
        try:
            return run()
        except Exception as error:
            kind = "" if isinstance(error, UserError) else f"{user_errors.kind(error)}: "
            what = kind + one_line(user_errors.text(error))[:300]
            raise RunFailed(Violation(_place(error), what, hints.of_error(error)), error) from error

    def scores(self, net: Net, x: Tensor, tensors: dict[str, Tensor] | None = None) -> Tensor:
        """Logits as algorithms ask for them: the head of the body, with these tensors."""
        m = Model(net, dict(net.state_dict()) if tensors is None else tensors)
        return m.head(m.body(x))


@check(
    "fits",
    "the body gives features of one width, the head a score for each class; the seed fixes the weights",
    needs=("inputs",),
)
def fits(s: ModelSubject) -> Violation | Note | None:
    """Its width is found by running it."""
    streams = Streams.now()
    try:
        width = architectures.width(s.name, s.shape, s.classes, s.features, s.dtype)
        net = s.net()
        architectures.require_fit(s.name, net, s.shape, s.dtype)
    except UserError as error:
        return Violation(_place(error), str(error), f"see {page('how-to/model')}")
    if used := streams.moved(Streams.now()):
        what = f"building the model draws from the process's random stream of {' and '.join(used)}"
        return Violation("", what, "initialise it with torch's random numbers, as torch.nn.init does")
    z = s.call(lambda: Model(net, dict(net.state_dict())).body(s.rows()))
    if z.shape != (ROWS, width):
        return Violation("", f"the body gives {tuple(z.shape)} for {ROWS} rows", f"give features [B, {width}]")
    size = f"features of width {width}, {sum(p.numel() for p in net.parameters()):,} parameters"
    unseeded = architectures.unseeded(s.name, s.shape, s.classes, s.features)
    return Note(size + f"; it {architectures.UNSEEDED}" * bool(unseeded))


@check("inputs", "in evaluation the model changes neither its input nor its tensors")
def inputs(s: ModelSubject) -> Violation | Note | None:
    """By version counters; if the model does not run, another check says why."""
    try:
        net, x = s.net(), s.rows()
        tensors = {n: t.clone() for n, t in net.state_dict().items()}
        s.scores(net, x, tensors)
    except Exception:
        return None
    if x._version:
        what = "the model changes the rows that it is given"
        return Violation("", what, "write a new tensor (x + 1) instead of x += 1")
    if changed := [n for n, t in tensors.items() if t._version]:
        return Violation("", f"it changes {changed[0]} in evaluation", "update buffers in training mode only")
    return None


@check("own state", "the same rows give the same scores, however often the model is called", needs=("fits",))
def own_state(s: ModelSubject) -> Violation | Note | None:
    """Up to 1,000 calls in training mode with the same tensors and draws, then one of a new instance."""
    streams, call = Streams.now(), _trained_scores(s)
    first = call()
    if used := [n for n in streams.moved(Streams.now()) if n != "torch"]:  # which is each client's own
        what = f"the model draws from the process's random stream of {' and '.join(used)}"
        return Violation("", what, "draw with torch.rand, randn")
    what = ""
    if executor_choice.unsteady(call, executor_choice.CALLS):
        what = "when it is called again with the same rows, tensors and draws, its scores differ"
    elif executor_choice.different(first, _trained_scores(s)()):
        what = "a new instance of it gives other scores than the first one gave, for the same seed"
    if what:
        return Violation("", what, executor_choice.KEEP)
    hook = hook_of(s.net())
    return Note(f"{hook} has a hook, which may keep state: clients run one after the other") if hook else None


def _trained_scores(s: ModelSubject) -> Callable[[], dict[str, Tensor]]:
    """A function that gives a new instance's scores in training mode, always of its first tensors and draws."""
    net = s.net()
    net.train()

    def call() -> dict[str, Tensor]:
        with torch.random.fork_rng(devices=()), torch.no_grad():
            torch.manual_seed(0)
            tensors = {n: t.clone() for n, t in net.state_dict().items()}
            return {"scores": s.call(lambda: s.scores(net, s.rows(), tensors))}

    return call


@check("state_dict", "state_dict is complete: loaded into another instance it gives the same scores", needs=("fits",))
def state_dict(s: ModelSubject) -> Violation | Note | None:
    """Load one instance's tensors into another instance that was made with another seed."""
    one, other, x = s.net(0), s.net(1), s.rows()
    values = {n: t.clone() for n, t in one.state_dict().items()}
    got, want = s.call(lambda: s.scores(other, x, values)), s.call(lambda: s.scores(one, x))
    what = f"with the tensors of another instance its scores differ by {(got - want).abs().max():.2g}"
    advice = "register all random tensors as nn.Parameter, or with register_buffer"
    return None if torch.equal(got, want) else Violation("", what, advice)


@check("types", "tensors that the model creates have the dtype and device of its input", needs=("fits",))
def types(s: ModelSubject) -> Violation | Note | None:
    """In double precision."""
    net = s.net().double()
    z = s.call(lambda: s.scores(net, s.rows(dtype=torch.float64)))
    what = f"in double precision it gives {str(z.dtype).removeprefix('torch.')}"
    advice = "make constants with x.new_zeros(…), torch.zeros_like(x)"
    return None if z.dtype == torch.float64 else Violation("", what, advice)


@check("gradient", "every parameter gets a finite gradient from the cross-entropy of its scores", needs=("fits",))
def gradient(s: ModelSubject) -> Violation | Note | None:
    """One batch in training mode, with its backward pass."""
    net = s.net()
    net.train()
    trained = [n for n, _ in net.named_parameters()]
    tensors = {n: t.clone().requires_grad_(n in trained) for n, t in net.state_dict().items()}
    loss = s.call(lambda: cross_entropy(s.scores(net, s.rows(), tensors), s.labels()))
    if not loss.isfinite():
        return Violation("", f"the loss before training is {loss.item()}", "keep logarithms and divisions away from 0")
    grads = s.call(lambda: torch.autograd.grad(loss, [tensors[n] for n in trained], allow_unused=True))
    of_name = dict(zip(trained, grads, strict=True))
    if lost := [n for n, g in of_name.items() if g is not None and not g.isfinite().all()]:
        what = f"the gradient of {lost[0]} is not finite"
        return Violation("", what, "keep roots, logarithms and divisions away from 0")
    idle = [n for n, g in of_name.items() if g is None]
    return Note(f"{', '.join(idle[:3])} does not affect the scores: it is sent, but never trained") if idle else None


@check(
    "one program",
    "stacked models give the same numbers as each alone, or clients run one by one",
    needs=("fits", "state_dict"),
)
def one_program(s: ModelSubject) -> Violation | Note | None:
    """If vmap cannot run the model, clients train one after the other under `--executor auto`."""
    nets, x = [s.net(k) for k in range(CLIENTS)], s.rows()
    states = [dict(net.state_dict()) for net in nets]
    stacked = {n: torch.stack([state[n] for state in states]) for n in states[0]}
    batch = to_all(Batch(x, s.labels(), {}), CLIENTS)
    try:
        stack = vmap(lambda tensors, rows: s.scores(nets[0], rows, tensors))(stacked, batch.x)
        single = torch.stack([s.call(partial(s.scores, net, x)) for net in nets])
        if not torch.allclose(stack, single, rtol=1e-3, atol=1e-4):
            what = f"stacked, its scores differ by {(stack - single).abs().max():.2g} from each model's alone"
            return Violation("", what, "make no number depend on how many clients there are, or on memory order")
        step = StackedStep(nets[0].train(), _pure_loss, Draws())
        step.draws.begin(lambda: [randomness.stream("check", k) for k in range(CLIENTS)])
        leaves = {n: stacked[n].clone().requires_grad_() for n, _ in nets[0].named_parameters()}
        step.turn_to({n: t.clone() for n, t in stacked.items()} | leaves, [*leaves.values()], {})
        step.compared_alone(batch, apart=1e-3)
    except Unstackable as error:
        return Note(f"{str(error).splitlines()[0]}: clients run one after the other")
    except Exception as error:
        place, text = _place(error), one_line(user_errors.text(error))[:160]
        return Note(f"vmap cannot run it{f' ({place})' if place else ''}: {text} … clients run one after the other")
    finally:
        nets[0].eval()
    s.stacks = True
    reason = tracing.why_eager(_pure_loss, nets[0])
    return Note(f"runs eagerly, as {reason}") if reason else None


@check("statistics", "the treatment of BatchNorm's running statistics", needs=("fits",))
def statistics(s: ModelSubject) -> Violation | Note | None:
    """A note on how BatchNorm's running statistics are treated."""
    norm = {type(m).__name__ for m in s.net().modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
    how = "averaged with the shared parts; --batch-norm personal keeps it at each client"
    return Note(f"{', '.join(sorted(norm))}: {how}") if norm else None


def _pure_loss(m: Model, batch: Batch, received: object) -> Tensor:
    """The cross-entropy, so that only the model can cause an error."""
    return cross_entropy(m.head(m.body(batch.x)), batch.y)


def _place(error: BaseException) -> str:
    """The author's line in an error, without the file's folder."""
    return Path(user_errors.place(error) or "").name


CHECKS: tuple[ConformanceCheck[ModelSubject], ...] = (
    inputs,
    fits,
    own_state,
    state_dict,
    types,
    gradient,
    one_program,
    statistics,
)
