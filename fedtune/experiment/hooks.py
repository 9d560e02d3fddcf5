"""Check what the methods of a user's algorithm return, and report a mistake with the method's place.

Only users' own methods are checked.  Otherwise a mistake would fail later, or silently train something else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from numbers import Real
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedtune.core.errors import UserError, shown
from fedtune.core.metrics import METRICS
from fedtune.core.pure import is_known
from fedtune.core.trees import Tree, in_words, leaves, named
from fedtune.experiment.algorithm import Algorithm, Data, Noise, Task, part_of, parts
from fedtune.user_code.user_errors import place_of

Checked = Any  # a method's return value


def wrong(alg: Algorithm, hook: str, must: str, actual: str, advice: str = "") -> UserError:
    """The error for a method's return value: its place, what it must return, what it returned, and advice."""
    cls: Any = type(alg)
    place = place_of(_own_method(cls, hook)) or place_of(cls)
    return _error(f"{place}: {cls.__name__}.{hook}", must, actual, advice)


def _wrong_code(code: Any, must: str, actual: str, advice: str = "") -> UserError:
    """The error for what a loss, or another function of a phase, returns."""
    while isinstance(code, partial):
        code = code.func
    name = getattr(code, "__name__", type(code).__name__)
    return _error(": ".join(filter(None, [place_of(code), name])), must, actual, advice)


def _error(who: str, must: str, actual: str, advice: str) -> UserError:
    return UserError(f"{who} must return {must}, but {actual}{advice and f'; {advice}'}")


@lru_cache(maxsize=256)
def _own_method(cls: Any, hook: str) -> Callable[..., Any] | None:
    """The user's own function of this name; None if the method is fedtune's."""
    for base in cls.__mro__:
        function: Callable[..., Any] | None = vars(base).get(hook)
        if function is not None and not is_known(getattr(function, "__module__", base.__module__) or ""):
            return function
    return None


def is_own(alg: Algorithm, *hooks: str) -> bool:
    """Whether one of these methods is the user's own."""
    cls: Any = type(alg)
    return any(_own_method(cls, hook) for hook in hooks)


def by_name(
    alg: Algorithm, hook: str, result: Checked, contents: str, holds: Callable[[Any], bool] = lambda _: True
) -> dict[str, Any]:
    """Check a dict by name, and that each of its values is one."""
    if not is_own(alg, hook):
        return result
    must = f"a dict of {contents} by name, {{}} for nothing"
    if not isinstance(result, Mapping):
        raise wrong(alg, hook, must, f"returns {in_words(result)}")
    for name, value in result.items():
        if not isinstance(name, str) or not holds(value):
            raise wrong(alg, hook, must, f"{shown(name)} is {in_words(value)}")
    return dict(result)


def tree(alg: Algorithm, hook: str, result: Checked, contents: str, clients: int | None = None) -> dict[str, Tree]:
    """Check a dict of trees of tensors, with a first axis of `clients` if given."""
    by_name(alg, hook, result, contents)
    for name, leaf in named(result).items() if is_own(alg, hook) else ():
        if not isinstance(leaf, Tensor):
            raise wrong(alg, hook, "tensors", f"{name} is {in_words(leaf)}", "torch.tensor(…) makes one of a number")
        if clients is not None and leaf.shape[:1] != (clients,):
            advice = "to_all(tree, len(ids)) of fedtune.core.trees gives all the same"
            raise wrong(alg, hook, f"a first axis of the {clients} clients", f"{name} is {in_words(leaf)}", advice)
    return result


def entries(alg: Algorithm, hook: str, result: Checked, server: dict[str, Tree]) -> dict[str, Tree]:
    """Check the server's entries: all previous ones, and shared parts with the same names, shapes and types."""
    if not is_own(alg, hook):
        return result
    tree(alg, hook, result, "the server's entries")
    if missing := sorted(server.keys() - result.keys()):
        actual = f"{', '.join(missing)} is left out"
        raise wrong(alg, hook, "all of the server's entries", actual, "begin with server | {…}")
    if "shared" in server:
        old, new = ({n: in_words(t) for n, t in named(state["shared"]).items()} for state in (server, result))
        if n := next((n for n in (*old, *new) if old.get(n) != new.get(n)), ""):
            must = f"the shared parts as they were, {n} as {old.get(n, 'no such name')}"
            raise wrong(alg, hook, must, f"{n} is {new.get(n, 'left out')}")
    return result


def built(alg: Algorithm, plain_net: nn.Module, task: Task) -> nn.Module:
    """The net with the algorithm's own parts."""
    net = alg.build(plain_net, task)
    if not is_own(alg, "build"):
        return net
    if not isinstance(net, nn.Module):
        raise wrong(alg, "build", "the net with its parts", f"returns {in_words(net)}", "return net")
    names = {*parts(net)}
    if loose := [n for n in net.state_dict() if part_of(n) not in names]:
        raise wrong(alg, "build", "a net of parts", f"{loose[0]} is in none of them", "put it into a module of its own")
    return net


def stays(alg: Algorithm, net: nn.Module) -> set[str]:
    """The tensors of shared parts that stay with each client."""
    result = alg.stays(net)
    if not is_own(alg, "stays"):
        return result
    if not isinstance(result, Collection) or isinstance(result, str):
        raise wrong(alg, "stays", "a set of names of tensors", f"returns {in_words(result)}")
    if unknown := [n for n in result if n not in net.state_dict()]:
        known = f"there are {', '.join(list(net.state_dict())[:4])}, …"
        raise wrong(alg, "stays", "names of the net's tensors", f"there is no {shown(unknown[0])}", known)
    return set(result)


def reported(alg: Algorithm, result: Checked) -> dict[str, float]:
    """Additional metrics of the round; they must not take the place of those that fedtune measures."""
    if taken := sorted({"round", *METRICS} & result.keys()) if isinstance(result, Mapping) else []:
        raise wrong(alg, "report", "numbers under names of its own", f"{taken[0]} is a metric of fedtune's")
    return by_name(alg, "report", result, "numbers", lambda v: isinstance(v, Real) and not isinstance(v, bool))


def noise(alg: Algorithm, result: Checked) -> dict[str, Noise]:
    """The random numbers that `upload` requests."""
    return by_name(alg, "upload_noise", result, "Noise(shape)", lambda v: isinstance(v, Noise))


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
    result: Checked,
    net: nn.Module,
    real: torch.dtype,
    axes: tuple[int, ...] = (),
    but: Collection[str] = (),
) -> dict[str, Tensor]:
    """Check tensors of the model by full names, with these first axes, and none of the parts `but`.

    error: makes it of the rule, what was returned, and advice.  real: the run's floating-point type.
    """
    must, forms = "tensors of the model by their full names", forms_of(net)
    if not isinstance(result, dict):
        raise error(must, f"returns {in_words(result)}", "{} is nothing")
    for name, t in result.items():
        if name not in forms:
            raise error(must, f"the model has no {shown(name)}", f"it has {', '.join([*forms][:4])}, …")
        if part_of(name) in but:
            raise error(must, f"{name} is of a part that its phase does not train", "")
        shape, dtype = forms[name]
        required = torch.Size((*axes, *shape)), real if dtype.is_floating_point else dtype
        if not isinstance(t, Tensor) or (t.shape, t.dtype) != required:
            form = f"{str(required[1])[6:]} {list(required[0])}"
            raise error(f"{name} of {form}", f"it is {in_words(t)}", "")
    return result


def set_tensors(
    code: Callable[..., Any], result: Checked, net: nn.Module, real: torch.dtype, but: Collection[str]
) -> dict[str, Tensor]:
    """The tensors of one client's model that a phase's `begin` or `project` returned."""
    return tensors(partial(_wrong_code, code), result, net, real, but=but)


def stop(code: Callable[..., Any], result: Checked) -> Tensor:
    """Whether a client stops, from a phase's `until`."""
    if not isinstance(result, Tensor) or result.dim():
        raise _wrong_code(code, "whether a client stops, a tensor []", f"returns {in_words(result)}")
    return result.bool()


def made(code: Callable[..., Any], result: Checked) -> Checked:
    """The rows of one client from a phase's `pool`."""
    if not isinstance(result, Data) or not all(isinstance(t, Tensor) for t in result[:3]):
        raise _wrong_code(code, "Data(x, y, mask, {}) of tensors", f"returns {in_words(result)}")
    return result


def heads(alg: Algorithm, result: Checked, rows: int, classes: int) -> dict[str, Tensor]:
    """The scores of some rows of one client, by prediction head."""
    scores_by_head = result if isinstance(result, dict) else {"head": result}
    if is_own(alg, "predict"):
        must = f"scores [{rows}, {classes}] of {rows} rows, or a dict of such"
        for name, scores in scores_by_head.items():
            subject = f"{shown(name)} is" if isinstance(result, dict) else "returns"
            valid = isinstance(scores, Tensor) and scores.is_floating_point() and scores.shape == (rows, classes)
            if not valid or not isinstance(name, str):
                raise wrong(alg, "predict", must, f"{subject} {in_words(scores)}")
        if not scores_by_head:
            raise wrong(alg, "predict", must, "returns an empty dict")
    return scores_by_head


def loss(code: Callable[..., Any], result: Checked) -> Checked:
    """The loss of a batch, optionally with its tally."""
    number, *rest = result if isinstance(result, tuple) and result else (result,)
    if not isinstance(number, Tensor) or number.dim() or not number.is_floating_point():
        raise _wrong_code(code, "one number, a tensor []", f"returns {in_words(number)}")
    is_tally = rest and isinstance(rest[0], dict) and all(isinstance(t, Tensor) for t in leaves(rest[0]))
    if rest and (len(rest) > 1 or not is_tally):
        raise _wrong_code(code, "one number and a dict of tensors (a tally)", f"also {', '.join(map(in_words, rest))}")
    return result


def require_gradient(code: Callable[..., Any], losses: Tensor, trained: list[Tensor]) -> None:
    """UserError for a loss that does not depend on anything that is trained."""
    if trained and not losses.requires_grad:
        raise _wrong_code(code, "a loss of what its phase trains", "it has no gradient", "is it detached?")
