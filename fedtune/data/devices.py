"""The clients' devices: how fast each trains, sends and receives.  Drawn from the seed, whatever the data are."""

from __future__ import annotations

import csv
import io
import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from fedtune.core.errors import UserError, shown, unknown
from fedtune.user_code import user_files
from fedtune.user_code.user_files import UserFile

if TYPE_CHECKING:  # a scenario, which needs no PyTorch, checks profiles here
    from torch import Tensor

    from fedtune.data.federation import Owners

NAMES = ("none", "alike", "lognormal", "exponential")
COLUMNS = ("slow", "up_mbps", "down_mbps", "lag")  # of a file, each optional, besides `client`


class Network(NamedTuple):
    """What devices have unless their profile says otherwise, and how far log-normal ones spread."""

    up_mbps: float
    down_mbps: float
    lag: float
    speed_spread: float
    mbps_spread: float


class Devices(NamedTuple):
    """Every client's device: tensors [K], float64, on the CPU."""

    slow: Tensor  # a row takes row_seconds · slow
    up_mbps: Tensor
    down_mbps: Tensor
    lag: Tensor


def taken(reference: str) -> tuple[str, tuple[UserFile, ...]]:
    """The canonical name of a profile, and its file, which is carried along whole; UserError if it cannot be read."""
    if not user_files.is_reference(reference, NAMES):
        return reference, ()
    file = user_files.of_content(reference)
    user_files.register([file])
    return file.name, (file,)


def require(profile: str, clients: int) -> None:
    """UserError unless this is a profile, and its file, if it is one that numbers the clients, has all of them."""
    if not user_files.is_reference(profile):
        if profile not in NAMES:
            raise UserError(f"{unknown('profile of devices', profile, NAMES)}; or your own: FILE.csv")
    elif user_files.is_own(profile):
        rows = _read(profile)
        if all(name.isdecimal() for name in rows):  # owners are known once the data are there
            _require_all(profile, rows, [[str(k)] for k in range(clients)])


def unused(profile: str, clients: int) -> list[str]:
    """The clients in a profile's file that numbers them, but is of more; a file of owners may hold others."""
    names = [*_read(profile)] if user_files.is_own(profile) else []
    return [n for n in names if int(n) >= clients] if all(map(str.isdecimal, names)) else []


def of(profile: str, network: Network, owners: Owners, clients: int, seed: int) -> Devices:
    """The clients' devices; UserError if the profile's file lacks a client."""
    import torch

    from fedtune.core import randomness
    from fedtune.data.federation import owner_of

    values = {"slow": 1.0, "up_mbps": network.up_mbps, "down_mbps": network.down_mbps, "lag": network.lag}
    tables = {name: torch.full((clients,), value, dtype=torch.float64) for name, value in values.items()}
    if profile == "lognormal":
        streams = (randomness.stream(seed, "devices", k) for k in range(clients))
        z = torch.stack([torch.randn(2, generator=s, dtype=torch.float64) for s in streams])
        tables["slow"] = (network.speed_spread * z[:, 0]).exp()
        for name in ("up_mbps", "down_mbps"):
            tables[name] = tables[name] * (network.mbps_spread * z[:, 1]).exp()
    elif profile not in NAMES:
        rows, names = _read(profile), [[owner_of(owners, k), str(k)] for k in range(clients)]
        _require_all(profile, rows, names)
        mine = [next(rows[name] for name in either if name in rows) for either in names]
        for name in rows[next(iter(rows))]:
            tables[name] = torch.tensor([row[name] for row in mine], dtype=torch.float64)
    return Devices(**tables)


def _require_all(profile: str, rows: dict[str, dict[str, float]], names: list[list[str]]) -> None:
    lacking = [either for either in names if not any(name in rows for name in either)]
    if lacking:
        who = " or ".join(dict.fromkeys(filter(None, lacking[0])))
        raise UserError(f"{profile} must have a row for every client, but lacks {len(lacking)}; the first is {who}")


def _read(profile: str) -> dict[str, dict[str, float]]:
    return _parsed(profile, user_files.known(profile).content or b"")


@lru_cache(maxsize=8)
def _parsed(name: str, content: bytes) -> dict[str, dict[str, float]]:
    """The rows of a file by client, its number or owner; UserError for the first that cannot be used."""
    try:
        lines = list(csv.reader(io.StringIO(content.decode("utf-8-sig"))))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{name} must be CSV in UTF-8, but cannot be read ({error}); export it again") from None
    header, *lines = [line for line in lines if line] or [[]]
    if "client" not in header or not {*header} <= {"client", *COLUMNS} or len({*header}) < len(header) or not lines:
        columns = f"client and any of {', '.join(COLUMNS)}, and rows"
        raise UserError(f"{name} must have the columns {columns}, but has {shown(','.join(header))}, {len(lines)} rows")
    rows: dict[str, dict[str, float]] = {}
    for line in lines:
        cells = dict(zip(header, line, strict=False))
        client = cells.pop("client", "").strip()
        if len(line) != len(header) or not client or client in rows:
            raise UserError(
                f"each row of {name} must be another client's, with all columns, but got {shown(','.join(line))}"
            )
        rows[client] = {column: _number(name, client, column, text) for column, text in cells.items()}
    return rows


def _number(name: str, client: str, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    least = "0 or more" if column == "lag" else "above 0"
    if not math.isfinite(value) or value < 0 or (value == 0 and column != "lag"):
        raise UserError(f"{column} in {name} must be a number {least}, but client {client} has {shown(text)}")
    return value
