"""Check what the methods of a user's algorithm return, and report a mistake with the method's place.

Only users' own methods are checked, each where the engine calls it.  Otherwise a mistake would fail later, in a line of
fedtune, or silently train something else.
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

Checked = Any  # a method's return value


def wrong(alg: Algorithm, hook: str, must: str, but: str, do: str = "") -> UserError:
    """The error for a method's return value: its place, the rule, what came, what would do."""
    cls: Any = type(alg)
    where = place_of(cls, _own(cls, hook))
    return UserError(f"{where}: {cls.__name__}.{hook} must return {must}, but {but}{do and f'; {do}'}")


@lru_cache(maxsize=256)
def _own(cls: Any, hook: str) -> Callable[..., Any] | None:
    """The user's own function of this name; None if the method is fedtune's."""
    for owner in cls.__mro__:
        function: Callable[..., Any] | None = vars(owner).get(hook)
        if function is not None and not is_known(getattr(function, "__module__", owner.__module__) or ""):
            return function
    return None


def is_own(alg: Algorithm, *hooks: str) -> bool:
    """Whether one of these methods is the user's own."""
    cls: Any = type(alg)
    return any(_own(cls, hook) for hook in hooks)


def said(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype)[6:]} {list(value.shape)}"
    if value is None or isinstance(value, str | bool | int | float):
        return shown(value)
    return f"a {type(value).__name__}"


# any tree ----------------------------------------------------------------------------------------------------------


def tree(alg: Algorithm, hook: str, found: Checked, of: str, clients: int | None = None) -> dict[str, Tree]:
    """Check a dict of trees of tensors, with a first axis of `clients` if given."""
    if not is_own(alg, hook):
        return found
    must = f"a dict of {of} by name"
    if not isinstance(found, dict):
        raise wrong(alg, hook, must, f"returns {said(found)}", "{} is nothing" if found is None else "")
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
    """Check the server's entries: all previous ones, and shared parts with the same names, shapes and types."""
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


# the model and what clients keep ------------------------------------------------------------------------------------


def built(alg: Algorithm, given: nn.Module, task: Task) -> nn.Module:
    """The net with the algorithm's own parts."""
    net = alg.build(given, task)
    if not is_own(alg, "build"):
        return net
    if not isinstance(net, nn.Module):
        raise wrong(alg, "build", "the net with its parts", f"returns {said(net)}", "return net")
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
        raise wrong(alg, "stays", "a set of names of tensors", f"returns {said(found)}")
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
    """Additional metrics of the round."""
    if not is_own(alg, "report"):
        return found
    if not isinstance(found, Mapping):
        raise wrong(alg, "report", "a dict of numbers by name", f"returns {said(found)}")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Real) or isinstance(value, bool):
            do = "float(…) makes a number of it" if isinstance(value, Tensor) else ""
            raise wrong(alg, "report", "a dict of numbers by name", f"{shown(name)} is {said(value)}", do)
    return dict(found)


def words(alg: Algorithm, hook: str, found: Checked) -> dict[str, Any]:
    """What `idle` or `resolved_defaults` says about hyperparameters, by name."""
    if is_own(alg, hook) and not (isinstance(found, Mapping) and all(isinstance(n, str) for n in found)):
        raise wrong(alg, hook, "a dict by hyperparameters' names", f"returns {said(found)}", "{} is nothing")
    return dict(found)


def noise(alg: Algorithm, found: Checked) -> dict[str, Noise]:
    """The random numbers that `upload` requests."""
    own = is_own(alg, "upload_noise")
    if own and not (isinstance(found, dict) and all(isinstance(n, Noise) for n in found.values())):
        raise wrong(alg, "upload_noise", "a dict of Noise(shape) by name", f"returns {said(found)}")
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
    """Check tensors of the model by full names, with these first axes, and none of the parts `but`.

    error: makes the error from the rule, what came, what would do.  real: the run's floating-point type.
    """
    must, forms = "tensors of the model by their full names", forms_of(net)
    if not isinstance(found, dict):
        raise error(must, f"returns {said(found)}", "{} is nothing" if found is None else "")
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
    """The tensors of one client's model that a phase's `begin` or `project` returned."""

    def error(must: str, what: str, do: str) -> UserError:
        return UserError(f"{_place(code)}{_name(code)} must return {must}, but {what}{do and f'; {do}'}")

    return tensors(error, found, net, real, but=but)


def stop(code: Callable[..., Any], found: Checked) -> Tensor:
    """Whether a client stops, from a phase's `until`."""
    if not isinstance(found, Tensor) or found.dim():
        must = "must return whether a client stops, a tensor []"
        raise UserError(f"{_place(code)}{_name(code)} {must}, but returns {said(found)}")
    return found.bool()


def made(code: Callable[..., Any], found: Checked) -> Checked:
    """The rows of one client from a phase's `pool`."""
    if not isinstance(found, Data) or not all(isinstance(t, Tensor) for t in found[:3]):
        raise UserError(
            f"{_place(code)}{_name(code)} must return Data(x, y, mask, {{}}) of tensors, but returns {said(found)}"
        )
    return found


def heads(alg: Algorithm, found: Checked, rows: int, classes: int) -> dict[str, Tensor]:
    """The scores of some rows of one client, by prediction head."""
    ways = found if isinstance(found, dict) else {"head": found}
    if is_own(alg, "predict"):
        must = f"scores [{rows}, {classes}] of {rows} rows, or a dict of such"
        for name, scores in ways.items():
            of = f"{shown(name)} is" if isinstance(found, dict) else "returns"
            good = isinstance(scores, Tensor) and scores.is_floating_point() and scores.shape == (rows, classes)
            if not good or not isinstance(name, str):
                raise wrong(alg, "predict", must, f"{of} {said(scores)}")
        if not ways:
            raise wrong(alg, "predict", must, "returns an empty dict")
    return ways


def loss(code: Callable[..., Any], found: Checked) -> Checked:
    """The loss of a batch, optionally with its tally."""
    number, *rest = found if isinstance(found, tuple) and found else (found,)
    if isinstance(number, Tensor) and not number.dim() and number.is_floating_point():
        if not rest or (len(rest) == 1 and isinstance(rest[0], dict) and _all_tensors(rest[0])):
            return found
        raise _wrong_loss(code, "a loss's second value must be a dict of tensors (a tally)", ", ".join(map(said, rest)))
    raise _wrong_loss(code, "a loss must be one number, a tensor []", said(number))


def require_gradient(code: Callable[..., Any], losses: Tensor, trained: list[Tensor]) -> None:
    """UserError for a loss that does not depend on anything that is trained."""
    if trained and not losses.requires_grad:
        raise _wrong_loss(
            code, "a loss must depend on what its phase trains", "without a gradient", " (is it detached?)"
        )


def _wrong_loss(code: Callable[..., Any], rule: str, got: str, more: str = "") -> UserError:
    return UserError(f"{_place(code)}{rule}, but this algorithm's is {got}{more}")


def _place(code: Any) -> str:
    """FILE:LINE of a function, as the beginning of a message."""
    while hasattr(code, "func"):  # a partial
        code = code.func
    inner = getattr(code, "__code__", None)
    return f"{inner.co_filename}:{inner.co_firstlineno}: " if inner else ""


def _name(code: Any) -> str:
    return getattr(code, "__name__", type(code).__name__)


def _all_tensors(found: Tree) -> bool:
    return all(isinstance(t, Tensor) for t in leaves(found))
