"""Initial weights for models: a `state_dict`, or a file from `fedtune run --save`, and how they fit a model.

A file's tensors are looked up in a model by their own names, in its body (`body.`), or in a network inside that
(`body.0.`), as torchvision's are.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtune.core.errors import UserError, unknown
from fedtune.core.terminal import few
from fedtune.experiment.algorithm import part_of
from fedtune.experiment.scenario import BODIES
from fedtune.user_code import user_files
from fedtune.user_code.user_files import UserFile

PLACES = ("", "body.", "body.0.")  # prefixes of a file's names in a model
COUNTER = "num_batches_tracked"  # BatchNorm's counter, which old files lack and nothing here reads


class Weights(NamedTuple):
    """The content of a file, by the file's tensor names."""

    name: str  # of the file
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

    names: Mapping[str, str]  # name in the model -> name in the file
    left_out: tuple[str, ...]  # names in the file that are not used
    drawn: tuple[str, ...]  # tensors of the used parts that the file lacks, drawn at random
    misfits: tuple[str, ...]  # a sentence for every part that does not fit


def parse(reference: str) -> tuple[str, str]:
    """Split FILE.pt[:part] into the file's name and the part, which may be empty."""
    file, _, part = reference.rpartition(":")
    return (file, part) if file and part.isidentifier() else (reference, "")


def take(reference: str) -> tuple[str, UserFile]:
    """The canonical name of FILE.pt[:part], and the file with its content: workers read no disk."""
    file, part = parse(reference)
    try:
        own = user_files.of_content(file)
    except UserError as error:
        raise UserError(f"--start-from takes FILE.pt or FILE.pt:part, but {error}") from error
    user_files.register([own])
    return own.name + (f":{part}" if part else ""), own


def _no_weights(name: str, reason: object) -> UserError:
    """The error for a file without weights."""
    return UserError(f"{name} has no weights that can be loaded without running code ({reason}); save a state_dict")


def find(name: str) -> Weights:
    """The weights in a registered file, or fedtune's own of this name; UserError if it has none."""
    return _read(name, BODIES[name].read_bytes() if name in BODIES else user_files.known(name).content or b"")


@lru_cache(maxsize=2)  # a process starts many trials from one file
def _read(name: str, content: bytes) -> Weights:
    try:
        loaded = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except Exception as error:  # from another program, truncated, or with code in it
        raise _no_weights(name, (str(error) or type(error).__name__).split("\n")[0].split(". ")[0]) from error
    if isinstance(loaded, dict) and {"experiment", "state"} <= set(loaded):
        try:
            return _of_run(name, loaded["state"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            if isinstance(error, UserError):
                raise
            raise _no_weights(name, f"it was not saved by fedtune: {type(error).__name__} {error}") from error
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict) or not loaded or not all(isinstance(t, Tensor) for t in loaded.values()):
        raise UserError(
            f"weights must be a state_dict, or a file from fedtune run --save, but {name} holds {_kind(loaded)}"
        )
    for n, t in loaded.items():
        _require_plain(name, n, t)
    return Weights(name, {str(n): t for n, t in loaded.items()}, {})


def _of_run(name: str, state: Mapping[str, Any]) -> Weights:
    """The values of a trained model that all clients share, and each client's own."""
    clients = {
        k: {n: t[row] for n, t in group["tensors"].items()}
        for group in state["groups"]
        for row, k in enumerate(group["ids"].tolist())
    }
    common = state["server"].get("shared", {})
    for n, t in [*common.items(), *(tensor for tensors in clients.values() for tensor in tensors.items())]:
        _require_plain(name, n, t, finite=False)
    return Weights(name, common, clients)


def fit(weights: Weights, target: Target, part: str = "") -> Fit:
    """How a file fits a model: the given part, or all that fit.  UserError for a part that the model lacks."""
    parts = list(dict.fromkeys(map(part_of, target.shapes)))
    if part and part not in parts:
        raise unknown("part", part, parts)
    first = next(iter(weights.clients.values()), {})
    of_clients = [weights.clients.get(k, first) for k in target.ids]
    shapes = {n: t.shape for tensors in (weights.common, *of_clients) for n, t in tensors.items()}
    place = max(PLACES, key=lambda prefix: sum(_model_name(n, prefix, target) in target.shapes for n in shapes))
    file_names = {_model_name(n, place, target): n for n in shapes}
    names: dict[str, str] = {}
    drawn: list[str] = []
    misfits: list[str] = []
    for p in [part] if part else parts:
        inside = [n for n in target.shapes if part_of(n) == p]
        matching = [n for n in inside if n in file_names]
        touched = matching or any(part_of(n) == p for n in file_names)
        reason = next(_misfits(weights, target, place, file_names, inside, shapes), "") if touched else ""
        if matching and not reason:
            names |= {n: file_names[n] for n in matching}
            drawn += [n for n in inside if n not in file_names and not n.endswith(COUNTER)]
        elif touched or part:
            misfits.append(f"{p} of {weights.name} does not fit this model: {reason or 'the file has no tensor of it'}")
    left_out = tuple(n for n in shapes if n not in names.values())
    return Fit(names, left_out, tuple(drawn), tuple(misfits))


def _model_name(name: str, place: str, target: Target) -> str:
    """The name in the model of a tensor in the file."""
    if place and target.head_was and name.startswith(target.head_was + "."):
        return "head." + name.removeprefix(target.head_was + ".")
    return place + name


def _misfits(
    weights: Weights,
    target: Target,
    place: str,
    names: Mapping[str, str],
    inside: list[str],
    shapes: Mapping[str, torch.Size],
) -> Iterator[str]:
    """Why a part's tensors cannot be taken from the file."""
    lacking = [k for k in target.ids if k not in weights.clients]
    for n in inside:
        name = names.get(n)
        if name is None:
            if n.startswith(place) and not n.endswith(COUNTER):
                yield f"{n} is missing in the file"
        elif shapes[name] != target.shapes[n]:
            yield f"{n} is {_size(shapes[name])} in the file and {_size(target.shapes[n])} in the model"
        elif name not in weights.common and n in target.shared:
            yield f"{n} is each client's own in the file and shared by all in the model"
        elif name not in weights.common and lacking:
            has = f"which has {len(weights.clients)} clients but no client {lacking[0]}"
            yield f"{n} is each client's own in the file, {has}"
        elif name not in weights.common:
            own = {k: weights.clients[k].get(name) for k in target.ids}
            others = (k for k, t in own.items() if t is None or t.shape != target.shapes[n])
            yield from (f"{n} has another size at client {k} in the file" for k in others)
    strange = [n for n in names if part_of(n) == part_of(inside[0]) and n not in target.shapes]
    if strange and not place:
        yield f"{strange[0]} is only in the file"


def _size(shape: torch.Size) -> str:
    return "×".join(map(str, shape)) or "one number"


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        strange = next((n for n, v in value.items() if not isinstance(v, Tensor)), None)
        return f"a dictionary with {strange!r}" if value else "an empty dictionary"
    return f"a {type(value).__name__}"


def _require_plain(file: str, name: str, t: Tensor, finite: bool = True) -> None:
    """UserError for a tensor whose numbers cannot be taken."""
    if t.layout is not torch.strided or t.is_quantized or t.is_meta:
        raise UserError(
            f"weights must be plain tensors, but {name} of {file} is sparse, quantized or empty; save it dense"
        )
    if finite and t.is_floating_point() and not t.isfinite().all():
        raise UserError(f"weights must be finite numbers, but {name} of {file} has nan or inf")


def require_some(weights: Weights, fits: Sequence[Fit]) -> None:
    """UserError unless at least one architecture starts from the file."""
    if any(f.names for f in fits):
        return
    message = f"{weights.name} has no tensor of this model; it has {few([*weights.common])}"
    raise UserError(next((m for f in fits for m in f.misfits), message))


def describe(weights: Weights, targets: Sequence[Target], part: str) -> str:
    """Which parts start from a file and which do not, in words; UserError if none does."""
    fits = [fit(weights, target, part) for target in targets]
    require_some(weights, fits)
    parts = dict.fromkeys(part_of(n) for f in fits for n in f.names)
    text = f"{' and '.join(parts)} from {weights.name} ({max(len(f.names) for f in fits)} tensors)"
    if drawn := dict.fromkeys(n for f in fits for n in f.drawn):
        text += f"; drawn at random: {few([*drawn])}"
    if unused := [n for n in fits[0].left_out if all(n in f.left_out for f in fits)]:
        text += f"; not used: {few(unused)}"
    if misfits := dict.fromkeys(m for f in fits for m in f.misfits):
        text += f"; {next(iter(misfits))}"
    if missed := sum(not f.names for f in fits):
        text += f"; {missed} of {len(fits)} architectures use none of it"
    return text
