"""What an author's methods give, held against what they are to give: a mistake is told with the place of the method.

Only methods of a user's own are looked at, and each where the engine calls it.  What is wrong would otherwise fail
later, in a line of ours, or train something else without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from numbers import Real
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedtune.core.errors import UserError, shown
from fedtune.core.pure import is_known
from fedtune.core.trees import Tree, leaves, named
from fedtune.experiment.algorithm import Algorithm, Data, Noise, Task, part_of, parts
from fedtune.experiment.user_algorithms import place_of

Checked = Any  # what a method gave


def wrong(alg: Algorithm, hook: str, must: str, but: str, do: str = "") -> UserError:
    """The error for what a method gives: its place, the rule, what came, what would do."""
    cls: Any = type(alg)
    where = place_of(cls, _own(cls, hook))
    return UserError(f"{where}: {cls.__name__}.{hook} must give {must}, but {but}{do and f'; {do}'}")


@lru_cache(maxsize=1024)
def _own(cls: Any, hook: str) -> Callable[..., Any] | None:
    """The user's own function of this name; None where the method is one of fedtune's."""
    for owner in cls.__mro__:
        function: Callable[..., Any] | None = vars(owner).get(hook)
        if function is not None and not is_known(getattr(function, "__module__", owner.__module__) or ""):
            return function
    return None


def is_own(alg: Algorithm, *hooks: str) -> bool:
    """Whether one of these methods is a user's own."""
    cls: Any = type(alg)
    return any(_own(cls, hook) for hook in hooks)


def said(value: Any) -> str:
    """What a value is, in a few words."""
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype)[6:]} {list(value.shape)}"
    if value is None or isinstance(value, str | bool | int | float):
        return shown(value)
    return f"a {type(value).__name__}"


# what is asked of any tree ----------------------------------------------------------------------------------------


def tree(alg: Algorithm, hook: str, found: Checked, of: str, clients: int | None = None) -> dict[str, Tree]:
    """A dict by name of trees of tensors, with the client axis in front where there are so many clients."""
    if not is_own(alg, hook):
        return found
    must = f"a dict of {of} by name"
    if not isinstance(found, dict):
        raise wrong(alg, hook, must, f"gives {said(found)}", "{} is nothing" if found is None else "")
    if name := next((n for n in found if not isinstance(n, str)), None):
        raise wrong(alg, hook, must, f"has the name {shown(name)}")
    for name, leaf in named(found).items():
        if not isinstance(leaf, Tensor):
            raise wrong(alg, hook, "tensors", f"{name} is {said(leaf)}", "torch.tensor(…) makes one of a number")
        if clients is not None and leaf.shape[:1] != (clients,):
            raise wrong(
                alg,
                hook,
                f"a first axis of the {clients} clients",
                f"{name} is {said(leaf)}",
                "to_all(tree, len(ids)) of fedtune.core.trees gives all the same",
            )
    return found


def entries(alg: Algorithm, hook: str, found: Checked, before: dict[str, Tree]) -> dict[str, Tree]:
    """The server's entries: all that there were, the shared parts of the same names, shapes and types."""
    if not is_own(alg, hook):
        return found
    tree(alg, hook, found, "the server's entries")
    if gone := sorted(before.keys() - found.keys()):
        raise wrong(
            alg, hook, "all of the server's entries", f"{', '.join(gone)} is left out", "begin with server | {…}"
        )
    if "shared" in before:
        old, new = ({n: _form(t) for n, t in named(of["shared"]).items()} for of in (before, found))
        if differ := [n for n in (*old, *new) if old.get(n) != new.get(n)]:
            n = differ[0]
            raise wrong(
                alg,
                hook,
                f"the shared parts as they were, {n} of {old.get(n, 'no such name')}",
                f"{n} is {new.get(n, 'left out')}",
            )
    return found


def _form(t: Tensor) -> str:
    return f"{str(t.dtype)[6:]} {list(t.shape)}"


# what makes the model and what is kept ------------------------------------------------------------------------------


def built(alg: Algorithm, given: nn.Module, task: Task) -> nn.Module:
    """The net with the algorithm's own parts."""
    net = alg.build(given, task)
    if not is_own(alg, "build"):
        return net
    if not isinstance(net, nn.Module):
        raise wrong(alg, "build", "the net with its parts", f"gives {said(net)}", "return net")
    there = {*parts(net)}
    if loose := [n for n in net.state_dict() if part_of(n) not in there]:
        raise wrong(alg, "build", "a net of parts", f"{loose[0]} is in none of them", "put it into a module of its own")
    return net


def stays(alg: Algorithm, net: nn.Module) -> set[str]:
    """The tensors of shared parts that stay with each client."""
    found = alg.stays(net)
    if not is_own(alg, "stays"):
        return found
    if not isinstance(found, Collection) or isinstance(found, str):
        raise wrong(alg, "stays", "a set of names of tensors", f"gives {said(found)}")
    if unknown := [n for n in found if n not in net.state_dict()]:
        raise wrong(
            alg,
            "stays",
            "names of the net's tensors",
            f"there is no {shown(unknown[0])}",
            f"there are {', '.join(list(net.state_dict())[:4])}, …",
        )
    return set(found)


def reported(alg: Algorithm, found: Checked) -> dict[str, float]:
    """Further metrics of the round."""
    if not is_own(alg, "report"):
        return found
    if not isinstance(found, Mapping):
        raise wrong(alg, "report", "a dict of numbers by name", f"gives {said(found)}")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Real) or isinstance(value, bool):
            do = "float(…) makes a number of it" if isinstance(value, Tensor) else ""
            raise wrong(alg, "report", "a dict of numbers by name", f"{shown(name)} is {said(value)}", do)
    return dict(found)


def words(alg: Algorithm, hook: str, found: Checked) -> dict[str, Any]:
    """What `idle` and `meant` say of hyperparameters by name."""
    if is_own(alg, hook) and not (isinstance(found, Mapping) and all(isinstance(n, str) for n in found)):
        raise wrong(alg, hook, "a dict by hyperparameters' names", f"gives {said(found)}", "{} is nothing")
    return dict(found)


def noise(alg: Algorithm, found: Checked) -> dict[str, Noise]:
    """The random numbers that `upload` asks for, declared."""
    own = is_own(alg, "upload_noise")
    if own and not (isinstance(found, dict) and all(isinstance(n, Noise) for n in found.values())):
        raise wrong(alg, "upload_noise", "a dict of Noise(shape) by name", f"gives {said(found)}")
    return found


# one client's model ---------------------------------------------------------------------------------------------------

Form = tuple[torch.Size, torch.dtype]
_FORMS: WeakKeyDictionary[nn.Module, dict[str, Form]] = WeakKeyDictionary()


def forms_of(net: nn.Module) -> dict[str, Form]:
    """The shapes and types of a net's tensors."""
    if net not in _FORMS:
        _FORMS[net] = {n: (t.shape, t.dtype) for n, t in net.state_dict().items()}
    return _FORMS[net]


def broadcast(
    alg: Algorithm, hook: Literal["broadcast", "deployed"], server: dict[str, Tree], ids: Tensor, task: Task
) -> dict[str, Tree]:
    """What clients receive, or would receive now."""
    default = {getattr(type(alg), h) is getattr(Algorithm, h) for h in (hook, "broadcast")} == {True}
    if unmade := [n for n in alg.sends if n not in server] if default and is_own(alg, "init") else []:
        raise wrong(alg, "init", "the entries that `sends` names", f"there is no {unmade[0]}")
    return tree(alg, hook, getattr(alg, hook)(server, ids, task), "what clients receive", len(ids))


def tensors(
    error: Callable[[str, str, str], UserError],
    found: Checked,
    net: nn.Module,
    real: torch.dtype,
    axes: tuple[int, ...] = (),
    but: Collection[str] = (),
) -> dict[str, Tensor]:
    """Tensors of the model by full names, with these axes in front, but of these parts.

    error: of what must be, what is, what would do.  real: the type of the run's real numbers.
    """
    must, forms = "tensors of the model by their full names", forms_of(net)
    if not isinstance(found, dict):
        raise error(must, f"gives {said(found)}", "{} is nothing" if found is None else "")
    for name, t in found.items():
        if name not in forms:
            raise error(must, f"the model has no {shown(name)}", f"it has {', '.join([*forms][:4])}, …")
        if part_of(name) in but:
            raise error(must, f"{name} is of a part that its phase does not train", "")
        shape, dtype = forms[name]
        wanted = torch.Size((*axes, *shape)), real if dtype.is_floating_point else dtype
        if not isinstance(t, Tensor) or (t.shape, t.dtype) != wanted:
            form = f"{str(wanted[1])[6:]} {list(wanted[0])}"
            raise error(f"{name} of {form}", f"it is {said(t)}", "")
    return found


def setting(
    code: Callable[..., Any], found: Checked, net: nn.Module, real: torch.dtype, but: Collection[str]
) -> dict[str, Tensor]:
    """What a phase's `begin` or `project` sets of one client's model."""

    def error(must: str, what: str, do: str) -> UserError:
        return UserError(f"{_place(code)}{_name(code)} must give {must}, but {what}{do and f'; {do}'}")

    return tensors(error, found, net, real, but=but)


def stop(code: Callable[..., Any], found: Checked) -> Tensor:
    """Whether a client stops, as a phase's `until` says."""
    if not isinstance(found, Tensor) or found.dim():
        must = "must give whether a client stops, a tensor []"
        raise UserError(f"{_place(code)}{_name(code)} {must}, but gives {said(found)}")
    return found.bool()


def made(code: Callable[..., Any], found: Checked) -> Checked:
    """The rows of one client that a phase's `pool` makes."""
    if not isinstance(found, Data) or not all(isinstance(t, Tensor) for t in found[:3]):
        raise UserError(
            f"{_place(code)}{_name(code)} must give Data(x, y, mask, {{}}) of tensors, but gives {said(found)}"
        )
    return found


def heads(alg: Algorithm, found: Checked, rows: int, classes: int) -> dict[str, Tensor]:
    """The scores of some rows of one client, by the ways to predict."""
    ways = found if isinstance(found, dict) else {"head": found}
    if is_own(alg, "predict"):
        must = f"scores [{rows}, {classes}] of {rows} rows, or a dict of such"
        for name, scores in ways.items():
            of = f"{shown(name)} is" if isinstance(found, dict) else "gives"
            good = isinstance(scores, Tensor) and scores.is_floating_point() and scores.shape == (rows, classes)
            if not good or not isinstance(name, str):
                raise wrong(alg, "predict", must, f"{of} {said(scores)}")
        if not ways:
            raise wrong(alg, "predict", must, "gives an empty dict")
    return ways


def loss(code: Callable[..., Any], found: Checked) -> Checked:
    """The loss of a batch, or with it what it tallies."""
    number, *rest = found if isinstance(found, tuple) and found else (found,)
    if isinstance(number, Tensor) and not number.dim() and number.is_floating_point():
        if not rest or (len(rest) == 1 and isinstance(rest[0], dict) and _all_tensors(rest[0])):
            return found
        raise _wrong_loss(code, "beside it a loss tallies a dict of tensors", ", ".join(map(said, rest)))
    raise _wrong_loss(code, "a loss is one number, a tensor []", said(number))


def require_gradient(code: Callable[..., Any], losses: Tensor, trained: list[Tensor]) -> None:
    """UserError for a loss that nothing trained can change."""
    if trained and not losses.requires_grad:
        raise _wrong_loss(code, "a loss depends on what its phase trains", "no gradient", " (is it detached?)")


def _wrong_loss(code: Callable[..., Any], rule: str, got: str, more: str = "") -> UserError:
    return UserError(f"{_place(code)}{rule}, but this algorithm's is {got}{more}")


def _place(code: Any) -> str:
    """FILE:LINE of a function, to begin a message with."""
    while hasattr(code, "func"):  # a partial
        code = code.func
    inner = getattr(code, "__code__", None)
    return f"{inner.co_filename}:{inner.co_firstlineno}: " if inner else ""


def _name(code: Any) -> str:
    return getattr(code, "__name__", type(code).__name__)


def _all_tensors(found: Tree) -> bool:
    return all(isinstance(t, Tensor) for t in leaves(found))
