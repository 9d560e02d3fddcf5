"""The architectures by name: feature widths and families, without the networks, which take a second to import."""

from __future__ import annotations

from fedtune.core.errors import unknown

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
OF_TOKENS = ("tokens",)  # takes whole numbers

_RESNETS = tuple(f"resnet{n}-pooled" for n in (18, 34, 50, 101, 152))
# mixed architectures of one feature width: client i runs number i mod their count
FAMILIES: dict[str, tuple[str, ...]] = {
    "htmini3": ("mlp", "cnn8", "cnn8-wide"),  # ours, for images of 8×8 and 28×28 on a CPU
    # HtFLlib's, which FedSA uses
    "htfe2": ("mcmahan-cnn", "resnet18-pooled"),
    "htfe3": ("resnet10-pooled", "resnet18-pooled", "resnet34-pooled"),
    "htfe5": ("googlenet-pooled", "mobilenet-pooled", *_RESNETS[:3]),
    "htfe8": ("mcmahan-cnn", "googlenet-pooled", "mobilenet-pooled", *_RESNETS),
}


def members(name: str) -> tuple[str, ...]:
    """The architectures of a model's or a family's name; UserError with the nearest one otherwise."""
    if name not in WIDTHS and name not in FAMILIES:
        raise unknown("model", name, [*WIDTHS, *FAMILIES])
    return FAMILIES.get(name, (name,))


def width(name: str, features: int = 0) -> int:
    """The feature dimension D of a model or a family: as asked for, or (0) its paper's."""
    return features or WIDTHS[members(name)[0]]
