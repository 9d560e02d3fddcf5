"""Architectures by name: feature widths and families, without the networks, which take a second to import."""

from __future__ import annotations

from fedtune.core.errors import unknown
from fedtune.user_code import entry_points, user_files

GROUP = "models"  # the group of entry points
# architecture -> its feature width D in the paper it comes from
WIDTHS: dict[str, int] = {
    "mlp": 64,
    "cnn8": 64,
    "cnn8-wide": 64,
    "fedproto-cnn": 50,
    "fedgen-cnn": 32,
    "fedgenp-cnn": 32,
    "celeba-cnn": 32,
    "mcmahan-cnn": 512,
    "tokens": 64,
    "resnet18": 128,
    "googlenet-pooled": 512,
    "mobilenet-pooled": 512,
    **{f"resnet{n}-pooled": 512 for n in (10, 18, 34, 50, 101, 152)},
}

ANY_SHAPE = ("mlp",)  # takes vectors and series as well as images; the others take images
OF_TOKENS = ("tokens",)  # takes token numbers

_RESNETS = tuple(f"resnet{n}-pooled" for n in (18, 34, 50, 101, 152))
# families of architectures with the same feature width: client i uses number i mod their count
FAMILIES: dict[str, tuple[str, ...]] = {
    "htmini3": ("mlp", "cnn8", "cnn8-wide"),  # ours, for images of 8×8 and 28×28 on a CPU
    # HtFLlib's, which FedSA uses
    "htfe2": ("mcmahan-cnn", "resnet18-pooled"),
    "htfe3": ("resnet10-pooled", "resnet18-pooled", "resnet34-pooled"),
    "htfe5": ("googlenet-pooled", "mobilenet-pooled", *_RESNETS[:3]),
    "htfe8": ("mcmahan-cnn", "googlenet-pooled", "mobilenet-pooled", *_RESNETS),
}


def names() -> tuple[str, ...]:
    """The names of all architectures and families, including those of installed packages."""
    return (*WIDTHS, *FAMILIES, *entry_points.names(GROUP))


def members(model: str) -> tuple[str, ...]:
    """The architectures of a model: one name, a family, or several separated by commas.

    UserError with the nearest name for an unknown one.  A user's file need not be known here, because records are also
    read elsewhere.
    """
    found: list[str] = []
    for name in user_files.each(model):
        if name not in WIDTHS and name not in FAMILIES and not is_own(name) and not user_files.is_reference(name):
            raise unknown("model", name, names(), "fedtune list")
        found += FAMILIES.get(name, (name,))
    return tuple(found)


def taking(tokens: bool, axes: int) -> tuple[str, ...]:
    """The built-in architectures for rows with this many axes, of tokens or of numbers."""
    if tokens:
        return OF_TOKENS
    return tuple(name for name in WIDTHS if name not in OF_TOKENS) if axes == 3 else ANY_SHAPE


def is_own(name: str) -> bool:
    """Whether an architecture is a user's: from a file or an installed package."""
    return name not in WIDTHS and (user_files.is_own(name) or name in entry_points.names(GROUP))
