"""Architectures by name: feature widths and families, without the networks, which take a second to import."""

from __future__ import annotations

from fedtune.core.errors import UserError, require_known, unknown
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
    "textcnn": 300,
    "lstm": 128,
    "cnn1d": 128,
    "resnet8-bn": 64,
    "resnet8-gn": 64,
    "resnet18-bn": 512,
    "resnet18-gn": 512,
    "vit": 64,
    "resnet18": 128,
    "densenet121": 1024,
    "efficientnet-b0": 1280,
    "convnext-tiny": 768,
    "googlenet-pooled": 512,
    "mobilenet-pooled": 512,
    **{f"resnet{n}-pooled": 512 for n in (10, 18, 34, 50, 101, 152)},
}

# architecture -> its options with their values: `vit(depth=6,width=128)`.  D grows with `width`.
OPTIONS: dict[str, dict[str, int]] = {
    "textcnn": {"width": 100, "embedding": 32, "vocabulary": 4096},
    "lstm": {"width": 128, "depth": 1, "embedding": 32, "vocabulary": 4096},
    "cnn1d": {"width": 32, "kernel": 9},
    "resnet8-bn": {"width": 16},
    "resnet8-gn": {"width": 16, "groups": 2},
    "resnet18-bn": {"width": 64},
    "resnet18-gn": {"width": 64, "groups": 2},
    "vit": {"patch": 4, "width": 64, "depth": 4, "heads": 4},
}

ANY_SHAPE = ("mlp",)  # takes vectors and series as well as images; those not named below take images
OF_TOKENS = ("tokens", "textcnn", "lstm")  # take token numbers
OF_SERIES = ("cnn1d",)  # take channels×time

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

    UserError with the nearest name for an unknown one; a user's file need not be here: records are read elsewhere too.
    """
    parts: list[str] = []
    for name in user_files.each(model):
        base = called(name)[0]
        if base not in WIDTHS and name not in FAMILIES and not is_own(name) and not user_files.is_reference(name):
            raise unknown("model", name, names(), "fedtune list models")
        parts += FAMILIES.get(name, (name,))
    return tuple(parts)


def called(name: str) -> tuple[str, dict[str, int]]:
    """An architecture's name without its options, and all its options: `vit(depth=6)`.

    UserError for options that it lacks, or that are no whole numbers of 1 or more.
    """
    base, given = user_files.called(name)
    if base not in WIDTHS:
        return name, {}
    options = OPTIONS.get(base, {})
    for option, value in given.items():
        if not options:
            raise UserError(f"model {base} takes no options, but got {name}; those that do: {', '.join(OPTIONS)}")
        require_known(f"option of model {base}", [option], options)
        if type(value) is not int or value < 1:
            raise UserError(f"options of model {base} must be whole numbers of 1 or more, but got {option}={value!r}")
    return base, options | given


def width(name: str) -> int:
    """The feature width of a built-in architecture with these options."""
    base, options = called(name)
    return WIDTHS[base] * options["width"] // OPTIONS[base]["width"] if options else WIDTHS[base]


def axes(name: str) -> tuple[int, ...]:
    """How many axes rows may have for a built-in architecture."""
    return (1, 2, 3) if name in ANY_SHAPE else (1,) if name in OF_TOKENS else (2,) if name in OF_SERIES else (3,)


def taking(tokens: bool, rank: int) -> tuple[str, ...]:
    """The built-in architectures for rows with this many axes, of tokens or of numbers."""
    return tuple(name for name in WIDTHS if (name in OF_TOKENS) == tokens and rank in axes(name))


def is_own(name: str) -> bool:
    """Whether an architecture is a user's: from a file or an installed package."""
    return called(name)[0] not in WIDTHS and (user_files.is_own(name) or name in entry_points.names(GROUP))
