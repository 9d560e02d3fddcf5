"""PyTorch's random functions in client code draw from each client's own stream.

All of them, dropout included, end in a few operations.  Here these take their numbers from the stream of the client
that they run for.  So a number has an address (stream, step, call), and is the same stacked or one by one, in any
groups, on every device, and after a resume.  Numbers are drawn on the CPU and then moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

from fedtune.core import randomness
from fedtune.core import vmap_rules as vmap_rules  # replaces PyTorch's rules before anything is stacked

T = TypeVar("T")
Streams = Callable[[], Sequence[torch.Generator]]
_RANDOM_CODE: WeakKeyDictionary[nn.Module, dict[Any, bool]] = WeakKeyDictionary()  # whether client code draws


class CannotRepeat(RuntimeError):
    """Client code draws random numbers in a way that cannot be reproduced."""


class Draws(TorchDispatchMode):
    """Run a function of client code and serve its random draws.

    Watching costs time, so code that draws nothing when it first runs is not watched.  If it draws later, it is run
    again and watched.
    """

    def __init__(self, code: Any = None, net: nn.Module | None = None) -> None:
        """code, net: whether this code draws on this net is remembered as long as the net exists."""
        super().__init__()
        self._random: dict[Any, bool] = {} if net is None else _RANDOM_CODE.setdefault(net, {})
        while isinstance(code, partial):  # a loss with its round bound is a new object every round
            code = code.func
        self.code = getattr(code, "__code__", getattr(code, "__func__", code))
        self._stacked, self._clients = False, 0
        self._client = 0
        self._make: Streams = list
        self._streams: Sequence[torch.Generator] | None = None
        self._turn = 0  # counts clients in operations that PyTorch runs for one client after the other

    def begin(self, streams: Streams) -> None:
        """Continue with the clients whose streams these are."""
        self._make, self._streams = streams, None

    def stacked(self, code: Callable[..., Any], clients: int, *trees: Any) -> Any:
        """Run client code for the first of these clients as one program."""
        if self.is_random is False:
            try:
                return vmap(code)(*trees)
            except RuntimeError as error:
                if "randomness error mode" not in str(error):
                    raise
        self._stacked, self._clients, self._turn = True, clients, 0
        with self:
            self._random.setdefault(self.code, False)
            return vmap(code, randomness="different")(*trees)

    def alone(self, code: Callable[..., Any], client: int, *trees: Any) -> Any:
        """Run client code for the client at this position."""
        if self.is_random is False:
            return code(*trees)
        self._stacked, self._client = False, client
        with self:
            self._random.setdefault(self.code, False)
            return code(*trees)

    def position(self) -> list[Tensor] | None:
        """Where the clients' streams are; None if nothing was drawn from them yet."""
        return None if self._streams is None else [s.get_state() for s in self._streams]

    def return_to(self, position: list[Tensor] | None) -> None:
        """Draw the same numbers again from such a position on."""
        if position is None or self._streams is None:
            self._streams = None
            return
        for stream, state in zip(self._streams, position, strict=True):
            stream.set_state(state)

    @property
    def is_random(self) -> bool | None:
        """Whether the code draws; None if it has not been run yet."""
        return self._random.get(self.code)

    def watch(self) -> None:
        """Watch this code from now on, because it draws."""
        self._random[self.code] = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Avoid wrapping for a compiler that is not used: importing it takes over a second."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation; a random one draws from the clients' streams."""
        if func in _CERTAIN:
            return func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded not in func.tags:
            _CERTAIN.add(func)
            return func(*args, **(kwargs or {}))
        arguments = _by_name(func, args, kwargs or {})
        if any(arguments.get(name) == 0 for name in _SWITCHES):  # it could draw, but its arguments switch that off
            return func(*args, **(kwargs or {}))
        self.watch()
        if self._streams is None:
            self._streams = self._make()
        return self._draw(func, arguments)

    def _draw(self, func: OpOverload, arguments: dict[str, Any]) -> Any:
        name = func._schema.name.removeprefix("aten::")
        operation = name.rstrip("_").removesuffix("_like")
        if operation not in _SAMPLERS:
            raise CannotRepeat(f"{operation} cannot draw from each client's own stream")
        if arguments.get("generator") is not None:
            raise CannotRepeat(f"{operation} was given a generator; leave it out, because every client has its own")
        if operation == "native_dropout":
            x, p = arguments["input"], arguments["p"]
            mask = self._numbers("bernoulli", {"self": x, "p": 1 - p, "dtype": torch.bool})
            return x * mask / (1 - p) if p < 1 else x * 0, mask
        numbers = self._numbers(operation, arguments)
        return arguments["self"].copy_(numbers) if name.endswith("_") else numbers

    def _numbers(self, operation: str, given: dict[str, Any]) -> Tensor:
        """The numbers of all clients that are being run, in the form that the operation returns."""
        assert self._streams is not None
        template = next((v for v in given.values() if isinstance(v, Tensor)), None)
        dtype = given.get("dtype")
        if not isinstance(dtype, torch.dtype):  # if no type was requested
            dtype = template.dtype if template is not None else _DTYPES.get(operation, torch.get_default_dtype())
        device = given.get("device") or (template.device if template is not None else torch.device("cpu"))
        if operation == "randperm" and self._stacked:
            self._turn += 1
            streams = [self._streams[(self._turn - 1) % self._clients]]
            return _SAMPLERS[operation](given, (), dtype, streams[0]).to(device)
        if not self._stacked:
            return _SAMPLERS[operation](_on_cpu(given), _shape(given), dtype, self._streams[self._client]).to(device)
        shape = _shape(given)
        tensors = {
            n: v.expand(shape) if operation != "multinomial" else v
            for n, v in _on_cpu(given).items()
            if isinstance(v, Tensor)
        }
        if shape[0] % self._clients:
            raise CannotRepeat(f"{operation} draws {list(shape)} numbers for {self._clients} clients")
        parts = []
        for stream, *chunks in zip(self._streams, *(t.chunk(self._clients) for t in tensors.values()), strict=False):
            of_client = given | dict(zip(tensors, chunks, strict=True))
            parts.append(_SAMPLERS[operation](of_client, (shape[0] // self._clients, *shape[1:]), dtype, stream))
            if len(parts) == self._clients:
                break
        return torch.cat(parts).to(device)


def certain(run: Callable[[], T], *all_draws: Draws) -> T:
    """Run the code; if PyTorch's own generator moved, code that should not draw did: run it again and watch it."""
    state = torch.get_rng_state()
    result = run()
    if torch.equal(state, torch.get_rng_state()):
        return result
    torch.set_rng_state(state)
    for draws in all_draws:
        draws.watch()
    return run()


def streams_of(streams: Sequence[torch.Generator], purpose: str = "draws") -> Streams:
    """The streams for draws in client code: the addresses of these streams, but with another purpose."""
    return lambda: [randomness.stream(s.initial_seed(), purpose) for s in streams]


_CERTAIN: set[Any] = set()  # operations that draw nothing
_SWITCHES = ("dropout_p", "dropout", "train", "training")
_DTYPES = {"randint": torch.int64, "randperm": torch.int64}

Sampler = Callable[[dict[str, Any], Sequence[int], torch.dtype, torch.Generator], Tensor]


def _filled(name: str, *arguments: str) -> Sampler:
    """A distribution that PyTorch has as an in-place operation, on a new tensor: memory order does not matter."""
    return lambda a, shape, dtype, g: getattr(torch.empty(shape, dtype=dtype), f"{name}_")(
        *(a[n] for n in arguments if a.get(n) is not None), generator=g
    )


def _of_values(name: str) -> Sampler:
    """A distribution whose parameters are a tensor."""
    return lambda a, shape, dtype, g: getattr(torch, name)(a["self"].contiguous(), generator=g)


_SAMPLERS: dict[str, Sampler] = {
    "rand": lambda a, shape, dtype, g: torch.rand(shape, generator=g, dtype=dtype),
    "randn": lambda a, shape, dtype, g: torch.randn(shape, generator=g, dtype=dtype),
    "randint": lambda a, shape, dtype, g: torch.randint(a.get("low", 0), a["high"], shape, generator=g, dtype=dtype),
    "randperm": lambda a, shape, dtype, g: torch.randperm(a["n"], generator=g, dtype=dtype),
    # from uniform numbers of one precision, so that a mask is the same in float32 and float64; the probability is a
    # number, or a tensor of them, which may be the operand itself
    "bernoulli": lambda a, shape, dtype, g: (torch.rand(shape, generator=g) < (a["p"] if "p" in a else a["self"])).to(
        dtype
    ),
    "uniform": lambda a, shape, dtype, g: (
        a["from"] + (a["to"] - a["from"]) * torch.rand(shape, generator=g, dtype=dtype)
    ),
    "normal": lambda a, shape, dtype, g: a["mean"] + a["std"] * torch.randn(shape, generator=g, dtype=dtype),
    "exponential": _filled("exponential", "lambd"),
    "random": _filled("random", "from", "to"),
    "geometric": _filled("geometric", "p"),
    "cauchy": _filled("cauchy", "median", "sigma"),
    "log_normal": _filled("log_normal", "mean", "std"),
    "poisson": _of_values("poisson"),
    "_standard_gamma": _of_values("_standard_gamma"),
    "multinomial": lambda a, shape, dtype, g: torch.multinomial(
        a["self"].contiguous(), a["num_samples"], a["replacement"], generator=g
    ),
    "native_dropout": lambda a, shape, dtype, g: torch.empty(0),  # drawn as "bernoulli"
}


def _by_name(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """An operation's arguments by name, including its defaults."""
    declared = func._schema.arguments
    defaults = {a.name: a.default_value for a in declared if a.has_default_value()}
    return defaults | {a.name: v for a, v in zip(declared, args, strict=False)} | kwargs


def _shape(arguments: dict[str, Any]) -> torch.Size:
    """The shape of what is drawn."""
    if "size" in arguments:
        return torch.Size(arguments["size"])
    return torch.broadcast_shapes(*(v.shape for v in arguments.values() if isinstance(v, Tensor)))


def _on_cpu(arguments: dict[str, Any]) -> dict[str, Any]:
    return {n: v.cpu() if isinstance(v, Tensor) else v for n, v in arguments.items()}
