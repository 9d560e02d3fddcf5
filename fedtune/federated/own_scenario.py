"""What a user's own data set and partition say about a scenario, where its user does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedtune.core.errors import UserError
from fedtune.data import own_data, own_partition


def defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that follow from a data set and a partition of one's own, for those that are not given.

    A data set that tells whose each row is comes by its owners: partition natural, a client for each of them.  A
    partition file says how many clients there are.  Vectors, series and tokens come with a model that takes them.
    UserError for a number of clients that the partition file contradicts.
    """
    found: dict[str, Any] = {}
    name, partition = fields.get("dataset", ""), fields.get("partition", "")
    if own_data.is_own(name):
        about = own_data.about(name)
        if len(about.shape) != 3 or about.tokens:
            found["model"] = "tokens" if about.tokens else "mlp"
        if about.owners and not partition:
            found["partition"] = partition = "natural"
        if about.owners and partition == "natural":
            found["owners"] = 1
            groups = str(fields.get("owners", 1))  # what is no number is the scenario's to refuse
            found["clients"] = max(1, about.owners // max(1, int(groups) if groups.isdecimal() else 1))
        if about.owners and partition == "domains":
            found["clients"] = about.owners
    if own_partition.is_own(partition):
        found["clients"] = clients = own_partition.clients(partition)
        if str(fields.get("clients", clients)) != str(clients):
            raise UserError(
                f"{partition} has {clients} clients, but clients is given as {fields['clients']}; leave it out"
            )
    return {n: v for n, v in found.items() if n not in fields}
