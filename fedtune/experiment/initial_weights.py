"""Initial weights for models: a `state_dict`, or a file from `fedtune run --save`, and how they fit a model.

A file's tensors are looked up in a model by their own names, in its body (`body.`), or in the network inside the body
(`body.0.`), so that torchvision's files fit the bodies made of torchvision's networks.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtune.core import zipped
from fedtune.core.errors import UserError, unknown
from fedtune.experiment import pretrained
from fedtune.experiment.algorithm import part_of
from fedtune.user_code import user_files
from fedtune.user_code.references import whole_path
from fedtune.user_code.user_files import UserFile

PLACES = ("", "body.", "body.0.")  # prefixes of a file's names in a model
PICKLED = b"\x80"  # the first byte of files of PyTorch before 1.6
REPEATED = 2**20  # a tensor with repeated (expanded) values may have this many bytes
COUNTER = "num_batches_tracked"  # BatchNorm's counter, which old files lack and nothing here reads


class Weights(NamedTuple):
    """The content of a file, by the file's tensor names."""

    name: str  # the file's
    common: Mapping[str, Tensor]  # values for all clients
    clients: Mapping[int, Mapping[str, Tensor]]  # each client's own values, by client number


class Target(NamedTuple):
    """What weights must fit: the structure of one architecture's clients."""

    shapes: Mapping[str, torch.Size]  # of every tensor, by its full name
    shared: Collection[str]  # names of the tensors that all clients share
    ids: Collection[int]  # the clients with this architecture
    head_was: str | None = None  # the head's name in the user's own module


class Fit(NamedTuple):
    """Which tensors of a model start from which tensors of a file, by name."""

    names: Mapping[str, str]  # ours -> the file's
    left_out: tuple[str, ...]  # names in the file that are not used
    drawn: tuple[str, ...]  # tensors of the used parts that the file lacks, drawn at random
    misfits: tuple[str, ...]  # a sentence for every part that does not fit


def parse(reference: str) -> tuple[str, str]:
    """Split FILE.pt[:part] into the file's name and the part, which may be empty."""
    file, _, part = reference.rpartition(":")
    return (file, part) if file and part.isidentifier() else (reference, "")


def take(reference: str) -> tuple[str, UserFile]:
    """The canonical name of FILE.pt[:part], and the file with its content (workers read no disk); UserError if it is
    invalid.
    """
    file, part = parse(reference)
    try:
        require(whole_path(file))
        own = user_files.of_content(file)
    except UserError as error:
        raise UserError(f"--start-from takes FILE.pt or FILE.pt:part, but {error}") from error
    user_files.register([own])
    return own.name + (f":{part}" if part else ""), own


def require(path: Path) -> None:
    """UserError for a file that is not PyTorch's, or unpacks to too much, before it is read whole."""
    try:
        start = zipped.first_bytes(path)
        if start == zipped.ZIP:
            zipped.require(path)
        elif start[:1] != PICKLED:
            raise UserError
    except UserError as error:
        raise _none(path.name, error.__cause__ or "it is not a PyTorch file") from error
    except FileNotFoundError:
        pass  # it may be registered
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; give another") from error


def _none(name: str, why: object) -> UserError:
    """The error for a file without weights."""
    return UserError(f"{name} has no weights that can be loaded without running code ({why}); save a state_dict")


def absolute(reference: str) -> str:
    """A reference with an absolute path."""
    file, part = parse(reference)
    return str(whole_path(file)) + (f":{part}" if part else "")


def find(name: str) -> Weights:
    """The weights in a registered file, or fedtune's own of this name; UserError if it has none."""
    return _read(name, pretrained.content(name) if name in pretrained.names() else user_files.content_of(name))


@lru_cache(maxsize=2)  # a process starts many trials from one file
def _read(name: str, content: bytes) -> Weights:
    try:
        kept = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except Exception as error:  # from another program, truncated, or with code in it
        raise _none(name, (str(error) or type(error).__name__).split("\n")[0].split(". ")[0]) from error
    if isinstance(kept, dict) and {"experiment", "state"} <= set(kept):
        try:
            return _of_run(name, kept["state"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            if isinstance(error, UserError):
                raise
            raise _none(name, f"it was not saved by fedtune: {type(error).__name__} {error}") from error
    if isinstance(kept, dict) and isinstance(kept.get("state_dict"), dict):
        kept = kept["state_dict"]
    if not isinstance(kept, dict) or not kept or not all(isinstance(t, Tensor) for t in kept.values()):
        raise UserError(
            f"weights must be a state_dict, or a file from fedtune run --save, but {name} holds {_kind(kept)}"
        )
    return Weights(name, {str(n): _finite(name, n, t) for n, t in kept.items()}, {})


def _of_run(name: str, state: Mapping[str, Any]) -> Weights:
    """The values of a trained model that all clients share, and each client's own."""
    clients = {
        k: {n: t[row] for n, t in group["tensors"].items()}
        for group in state["groups"]
        for row, k in enumerate(group["ids"].tolist())
    }
    common = state["server"].get("shared", {})
    for n, t in [*common.items(), *(held for own in clients.values() for held in own.items())]:
        _require_whole(name, n, t)
    return Weights(name, common, clients)


def fit(weights: Weights, target: Target, part: str = "") -> Fit:
    """How a file fits a model: the given part, or all that fit.  UserError for a part that the model lacks."""
    parts = list(dict.fromkeys(map(part_of, target.shapes)))
    if part and part not in parts:
        raise unknown("part", part, parts)
    theirs = {n: t.shape for n, t in weights.common.items()}
    own = next(iter(weights.clients.values()), {})
    mine: dict[str, torch.Size] = {n: t.shape for k in target.ids for n, t in weights.clients.get(k, own).items()}
    place = max(PLACES, key=lambda at: sum(_ours(n, at, target) in target.shapes for n in theirs | mine))
    found = {_ours(n, place, target): n for n in theirs | mine}
    names: dict[str, str] = {}
    drawn: list[str] = []
    misfits: list[str] = []
    for p in [part] if part else parts:
        inside = [n for n in target.shapes if part_of(n) == p]
        have = [n for n in inside if n in found]
        near = have or any(part_of(n) == p for n in found)
        wrong = _wrong(weights, target, place, found, inside, theirs | mine) if near else []
        if have and not wrong:
            names |= {n: found[n] for n in have}
            drawn += [n for n in inside if n not in found and not n.endswith(COUNTER)]
        elif near or part:
            said = "; ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
            misfits.append(f"{p} of {weights.name} does not fit this model: {said or 'the file has no tensor of it'}")
    left_out = tuple(n for n in theirs | mine if n not in names.values())
    return Fit(names, left_out, tuple(drawn), tuple(misfits))


def _ours(name: str, place: str, target: Target) -> str:
    """The name in the model of a tensor in the file."""
    if place and target.head_was and name.startswith(target.head_was + "."):
        return "head." + name.removeprefix(target.head_was + ".")
    return place + name


def _wrong(
    weights: Weights,
    target: Target,
    place: str,
    found: Mapping[str, str],
    inside: list[str],
    theirs: Mapping[str, torch.Size],
) -> list[str]:
    """The reasons why a part's tensors cannot be taken from the file, a few words each."""
    said = []
    part = part_of(inside[0])
    for n in inside:
        if n not in found:
            if n.startswith(place) and not n.endswith(COUNTER):
                said.append(f"{n} is missing in the file")
        elif theirs[found[n]] != target.shapes[n]:
            said.append(f"{n} is {_size(theirs[found[n]])} in the file and {_size(target.shapes[n])} in the model")
        elif found[n] not in weights.common and (reason := _not_own(weights, target, n, found[n])):
            said.append(reason)
    if not place:
        said += [f"{n} is only in the file" for n in found if part_of(n) == part and n not in target.shapes]
    return said


def _not_own(weights: Weights, target: Target, name: str, theirs: str) -> str:
    """Why values that each client has as its own in the file cannot be taken; "" if they can."""
    if name in target.shared:
        return f"{name} is each client's own in the file and shared by all in the model"
    absent = [k for k in target.ids if k not in weights.clients]
    if absent:
        return (
            f"{name} is each client's own in the file, which has {len(weights.clients)} clients but no client "
            f"{absent[0]}"
        )
    apart = [
        k
        for k in target.ids
        if theirs not in weights.clients[k] or weights.clients[k][theirs].shape != target.shapes[name]
    ]
    return f"{name} has another size at client {apart[0]} in the file" if apart else ""


def _size(shape: torch.Size) -> str:
    return "×".join(map(str, shape)) or "one number"


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        strange = next((n for n, v in value.items() if not isinstance(v, Tensor)), None)
        return f"a dictionary with {strange!r}" if value else "an empty dictionary"
    return f"a {type(value).__name__}"


def _finite(file: str, name: str, t: Tensor) -> Tensor:
    _require_whole(file, name, t)
    if t.is_floating_point() and not t.isfinite().all():
        raise UserError(f"weights must be finite numbers, but {name} of {file} has nan or inf")
    return t


def _require_whole(file: str, name: str, t: Tensor) -> None:
    """UserError for a tensor with repeated values, or of an unsupported type."""
    if t.layout is not torch.strided or t.is_quantized or t.is_meta:
        raise UserError(f"weights must be plain tensors, but {name} of {file} is {_make(t)}; save it dense")
    if t.numel() * t.element_size() > max(t.untyped_storage().nbytes(), REPEATED):
        raise UserError(f"weights must be stored in full, but {name} of {file} is {_size(t.shape)} repeated numbers")


def _make(t: Tensor) -> str:
    return "quantized" if t.is_quantized else "on the device meta" if t.is_meta else str(t.layout)


def require_some(weights: Weights, fits: Sequence[Fit]) -> None:
    """UserError unless at least one architecture starts from the file."""
    if any(f.names for f in fits):
        return
    here = f"{weights.name} has no tensor of this model; it has {_some(tuple(weights.common))}"
    raise UserError(next((m for f in fits for m in f.misfits), here))


def describe(weights: Weights, targets: Sequence[Target], part: str) -> str:
    """Which parts start from a file and which do not, in words; UserError if none does."""
    fits = [fit(weights, target, part) for target in targets]
    require_some(weights, fits)
    taken = dict.fromkeys(part_of(n) for f in fits for n in f.names)
    text = f"{' and '.join(taken)} from {weights.name} ({max(len(f.names) for f in fits)} tensors)"
    if drawn := dict.fromkeys(n for f in fits for n in f.drawn):
        text += f"; drawn at random: {_some(tuple(drawn))}"
    if left := [n for n in fits[0].left_out if all(n in f.left_out for f in fits)]:
        text += f"; not used: {_some(tuple(left))}"
    if misfits := dict.fromkeys(m for f in fits for m in f.misfits):
        text += f"; {next(iter(misfits))}"
    if missed := sum(not f.names for f in fits):
        text += f"; {missed} of {len(fits)} architectures use none of it"
    return text


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
