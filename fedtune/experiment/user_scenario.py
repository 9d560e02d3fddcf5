"""The scenario from the command line's fields, including the user's own data, partition and model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from fedtune.core.errors import UserError
from fedtune.core.terminal import few, several
from fedtune.data import datasets, devices, flwr_partitions, user_metadata, user_rows
from fedtune.data.assignment import rounded_down
from fedtune.data.dataset import PICTURES
from fedtune.experiment import scenarios
from fedtune.experiment.rows_in_play import kept_rows
from fedtune.experiment.scenario import PARTITIONS, Scenario
from fedtune.nn import catalogue
from fedtune.user_code import user_files
from fedtune.user_code.user_files import UserFile


def known() -> dict[str, tuple[str, ...]]:
    """The fields that also accept a file, and their built-in names."""
    own_data = {"dataset": datasets.names(), "model": catalogue.names(), "partition": PARTITIONS}
    return own_data | {"devices": devices.NAMES}


def taken(
    name: str, fields: Mapping[str, Any], fixed: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Scenario, dict[str, Any], tuple[UserFile, ...]]:
    """A named scenario with these fields, which may be files; the fields with canonical names; the user's files.

    fixed: hyperparameters that are given; defaults of others depend on them.
    Data and partition are read and checked here.  UserError if anything is wrong.
    """
    base, given = scenarios.find(name), dict(fields)
    own: tuple[UserFile, ...] = ()
    for field, names in known().items():
        if field in given:
            text = str(given[field])
            given[field], files = devices.taken(text) if field == "devices" else user_files.take_each(text, names)
            own = user_files.merged(own, files)
    user_files.register(own)
    if name not in (*scenarios.SCENARIOS, given.get("dataset")):
        raise UserError(f"unknown scenario {name!r}: give your own data by --dataset, without --scenario")
    if user_files.is_own(given.get("dataset", "")):
        from fedtune.data import user_data

        own = user_data.described(given["dataset"], own)
    if user_files.is_own(given.get("partition", "")):
        from fedtune.data import user_partition

        own = user_partition.described(given["partition"], own)
    if flwr_partitions.is_named(given.get("partition", "")):
        flwr_partitions.require(given["partition"])
    fields = defaults(given) | given
    of = {**vars(base), **fields, **fixed}
    training = scenarios.swept(name, of["dataset"], of["model"], of["optimizer"])
    return base.override(**(training | fields)), given, own


def data_in_words(scenario: Scenario) -> str:
    """A user's data set and its preprocessing in one line; "" for built-in data sets."""
    name = scenario.dataset
    if not user_metadata.is_own(name):
        return ""
    about = datasets.about(name)
    kind, row = about.row(name, scenario.image_size, scenario.x_as)
    shape, tokens = "×".join(map(str, row)), kind == user_rows.TOKENS
    owners = f", {several(about.owners, 'owner')}" if about.owners else ""
    clients = several(scenario.clients, "client")
    clients += f" of {scenario.owners} owners" if scenario.partition == "natural" and scenario.owners > 1 else ""
    scaled = "standardised by training rows" if scenario.normalise == "train" else "as given"
    return (
        f"{name}, {several(about.rows, 'row')} of {several(about.classes, 'class')}{owners}, {kind} {shape} "
        f"{'as given' if tokens else scaled}; partition {scenario.partition}, {clients}"
    )


def notes(scenario: Scenario) -> tuple[str, ...]:
    """Notes about what was read from the user's data set, and about a choice among all clients, one line each."""
    name, chosen = scenario.dataset, scenario.over_ask > 1 or scenario.selection != "uniform"
    everyone = (
        "with participation 1 all clients take part, so over_ask and selection change nothing; give --participation",
    ) * (chosen and scenario.participants == scenario.clients)
    everyone += ("with lost_share 1 every upload is lost, so no server learns anything; give less",) * (
        scenario.lost_share == 1
    )
    if more := devices.unused(scenario.devices, scenario.clients):
        everyone += (f"{scenario.devices} has rows of clients that there are not: {few(more)}",)
    if not user_metadata.is_own(name):
        return everyone
    about = datasets.about(name)
    read = (f"x of {name} is taken as {scenario.x_as} (--x-as)",) if not about.kind else ()
    return (*about.notes, *read, *everyone)


def defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults of fields that depend on the user's data set or partition, for those that are not given.

    A data set with owners is partitioned by them: partition natural, one client per owner.  A partition file determines
    the number of clients.  Vectors, series and tokens get a model that takes them.  If the kind of the rows is
    ambiguous, a given model that takes only one kind decides it.  With several owners per client, the last client holds
    those that are left.  UserError if the number of clients contradicts the partition file.
    """
    found: dict[str, Any] = {}
    name, partition = fields.get("dataset", ""), fields.get("partition", "")
    if user_metadata.is_own(name):
        about = datasets.about(name)
        enough = _owners(name, fields, about)
        kind = about.kind
        if kind != PICTURES:
            x_as = str(fields.get("x_as", user_rows.AUTO))
            if not kind and x_as == user_rows.AUTO and "model" in fields:
                found["x_as"] = x_as = _only_kind(str(fields["model"]), about) or x_as
            kind = user_rows.resolved(name, kind, about.shape, x_as)
        if kind not in (PICTURES, user_rows.IMAGES):
            found["model"] = "tokens" if kind == user_rows.TOKENS else "mlp"
        if about.owners and not partition:
            found["partition"] = partition = "natural"
        if about.owners and partition == "natural":
            found["owners"] = 1
            pool = int(rounded_down(_number(fields, "share", 1.0) * enough))
            found["clients"] = max(1, math.ceil(pool / max(1.0, _number(fields, "owners", 1.0))))
        if about.owners and partition == "domains":
            found["clients"] = max(1, enough)
    if (clients := _clients(partition)) is not None:
        found["clients"] = clients
        if str(fields.get("clients", clients)) != str(clients):
            raise UserError(
                f"{partition} has {clients} clients, but clients was given as {fields['clients']}; leave it out"
            )
    return {n: v for n, v in found.items() if n not in fields}


def _clients(partition: str) -> int | None:
    """The number of clients that a partition says by itself, if it does."""
    if user_metadata.is_partition(partition):
        return user_metadata.clients(partition)
    return flwr_partitions.clients(partition) if flwr_partitions.is_named(partition) else None


def _owners(name: str, fields: Mapping[str, Any], about: user_metadata.DatasetInfo) -> int:
    """The number of owners whose rows may be given to clients."""
    skip, keep, least = (int(_number(fields, n, 0.0)) for n in ("skip_classes", "keep_classes", "min_rows"))
    if not about.owners or not (skip or keep):
        return about.owners_of(least)
    data = datasets.load(name)
    assert data.owner is not None  # the metadata say so
    return len(np.unique(data.owner[kept_rows(data, skip, keep, least)]))


def _only_kind(model: str, about: user_metadata.DatasetInfo) -> str:
    """The kind of the rows if type and axes leave it ambiguous and the model takes only one; "" otherwise."""
    kinds = user_rows.OF_AXES[len(about.shape)]
    fitting = [kind for kind in kinds if _takes(model, user_rows.row_shape(kind, about.shape), kind, about.classes)]
    return fitting[0] if len(kinds) > 1 and len(fitting) == 1 else ""


def _takes(model: str, shape: tuple[int, ...], kind: str, classes: int) -> bool:
    """Whether a model, or several, take such rows."""
    import torch

    from fedtune.nn import architectures

    tokens, bases = kind == user_rows.TOKENS, [catalogue.called(m)[0] for m in catalogue.members(model)]
    if any(m in catalogue.WIDTHS and m not in catalogue.taking(tokens, len(shape)) for m in bases):
        return False
    try:
        architectures.width(model, shape, classes, dtype=torch.int64 if tokens else torch.float32)
    except UserError:
        return False
    return True


def _number(fields: Mapping[str, Any], name: str, otherwise: float) -> float:
    """A field's value as a number; a value that is not a number is refused elsewhere, by the scenario."""
    try:
        value = float(fields.get(name, otherwise))
    except (TypeError, ValueError):
        return otherwise
    return value if math.isfinite(value) else otherwise
