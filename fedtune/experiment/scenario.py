"""Scenarios: data set, partition, model, clients, local training, rounds and evaluation.

Every field can be overridden; those declared with `hyper` can also be searched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fedtune.core.errors import UserError, require_known, shown, unknown
from fedtune.core.hyper import check_all, hyper, python_value
from fedtune.core.terminal import short
from fedtune.data import datasets, flwr_partitions, user_metadata, user_rows
from fedtune.data import devices as profiles
from fedtune.nn import catalogue
from fedtune.user_code import user_files

OWN = {  # fields that also accept a user's own file, by its canonical name
    "dataset": "; or your own: FILE.npz, FILE.csv(y=COLUMN), a folder of pictures, a function FILE.py:NAME, …",
    "partition": "; or your own: FILE.npz; or flwr:DirichletPartitioner(alpha=0.3), … of flwr-datasets",
}
# partition -> the fields that it uses, besides clients
USES: dict[str, tuple[str, ...]] = {
    "ways-shots": ("ways", "ways_spread", "shots", "shots_spread", "val_shots", "test_shots"),
    "dirichlet": ("alpha", "floor", "val_share", "test_share"),
    "iid": ("val_share", "test_share"),
    "fedgen": ("alpha", "floor", "share", "val_share"),
    "natural": ("owners", "share", "val_share", "test_share"),
    "shards": ("shards", "val_share", "test_share"),
    "quantity": ("alpha", "floor", "val_share", "test_share"),
    "power-law": ("power", "floor", "val_share", "test_share"),
    "domains": ("val_share", "test_share"),
}
PARTITIONS = tuple(USES)
EVALUATIONS = ("personal", "global", "pooled")
# bodies that all models may start from, each named by the scenario that it was trained in: `fedtune run --algo fedavg
# --scenario NAME --save NAME.pt`.  They never change, as another machine would give slightly different bits.
BODIES = {file.stem: file for file in sorted(Path(__file__).parent.glob("*.pt"))}


OFTEN = ("dataset", "model", "partition", "clients", "rounds")  # fields that --help shows
FLAGS = (  # fields with an option of their own; the others are given by --set NAME=VALUE
    *(*OFTEN, "features", "participation", "normalise", "x_as", "image_size", "ways", "shots", "alpha", "shards"),
    *("share", "owners", "min_rows", "val_share", "test_share", "evaluation", "eval_clients", "all_classes"),
    *("batch", "local_epochs", "local_steps", "optimizer", "lr", "momentum"),
    *("privacy", "epsilon", "population", "cohort", "compress", "devices", "lost_share", "deadline", "over_ask"),
    "selection",
)
# hyperparameters of a part of the round that is off: no configuration has them (`Scenario.off`)
OF_PRIVACY = ("update_noise", "update_clip", "clip_quantile", "clip_rate")
OF_CODECS: dict[str, tuple[str, ...]] = {
    "none": (),
    "fp16": (),
    "int8": (),
    "qsgd": ("sent_bits",),
    "sign": ("error_feedback",),
    "topk": ("sent_share", "error_feedback"),
    "randk": ("sent_share", "error_feedback"),
}
# hyperparameter -> the codecs that use it
CODECS_OF = {n: tuple(c for c, used in OF_CODECS.items() if n in used) for n in sum(OF_CODECS.values(), ())}
SELECTIONS = ("uniform", "power-of-choice", "oort")
OF_DEVICES = (  # with one of these not at its default, device seconds are counted
    *("devices", "row_seconds", "up_mbps", "down_mbps", "lag", "speed_spread", "mbps_spread", "server_seconds"),
    *("lost_share", "deadline", "over_ask", "selection", "offered"),
)
MAX_PARTITIONS_NAMED = 3  # partitions that a field's help names


def option(default: Any, help: str, bounds: tuple[float, float] | None = None) -> Any:
    """A field of a scenario that is no hyperparameter.  help: a line; what stands after "; " is further detail.

    bounds: its smallest and largest value, both included; memory grows with most numbers.
    """
    return field(default=default, metadata={"help": help, "bounds": bounds})


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One scenario.  A partition ignores the fields that it does not use."""

    dataset: str = option("digits", f"data set, or your own{OWN['dataset'].replace('or your own: ', '')}")
    model: str = option(
        "cnn8", "model, or your FILE.py:NAME; several with commas: client i has number i mod their count"
    )
    features: int = option(0, "D, width of the features, 0: the model's own", (0, 1_000_000))
    clients: int = option(20, "K, number of clients", (1, 1_000_000))
    # searched only where a space names it: with fewer clients a round costs less
    participation: float = hyper(1.0, 1e-6, 1.0, log=True, help="share of the clients that take part in a round")
    skip_classes: int = option(
        0, "first classes that are left out; the others are renumbered, and the head keeps its width"
    )
    keep_classes: int = option(0, "classes used after those, 0: all; the others are left out")
    normalise: str = option(
        "train",
        "how your data's features are scaled: train or none; train: standardised by all clients' training rows, none: "
        "as given",
    )
    x_as: str = option(
        "auto",
        "what the rows of your arrays are; auto: by their type and axes; if these leave it open: numbers, tokens, "
        "series or images",
    )
    image_size: int = option(
        0, "side in pixels that your pictures are resized to, 0: as they are; then all must have one size", (0, 4096)
    )

    partition: str = option(
        "ways-shots", f"how rows are split; one of {', '.join(PARTITIONS)}{OWN['partition'].replace('; or', ', or')}"
    )
    ways: int = option(4, "w̄, classes of a client", (2, 100_000))
    ways_spread: int = option(1, "ŵ, the most by which that number varies", (0, 100_000))
    shots: int = option(8, "s̄, training rows of a client per class", (2, 1_000_000))
    shots_spread: int = option(1, "ŝ, the most by which that number varies", (0, 1_000_000))
    val_shots: int = option(4, "validation rows per class", (1, 1_000_000))
    test_shots: int = option(4, "test rows per class", (1, 1_000_000))
    alpha: float = option(
        0.1,
        "Dirichlet's α; small: unlike clients, 100: nearly iid; in quantity it acts on the clients' sizes only",
        (1e-09, 1e6),
    )
    floor: int = option(
        10,
        "fewest rows of a client; partitions dirichlet, quantity and power-law; in fedgen the fewest training and "
        "validation rows together",
        (3, 1_000_000),
    )
    share: float = option(
        1.0, "share of the rows used; fedgen: of the training rows, natural: of their owners", (1e-09, 1.0)
    )
    owners: int = option(10, "owners whose rows a client has", (1, 1_000_000))
    min_rows: int = option(0, "owners with fewer rows are left out, 0: none; for data sets with owners", (0, 1_000_000))
    val_share: float = option(0.15, "share of a client's rows for validation; not in ways-shots")
    test_share: float = option(0.25, "share of a client's rows for test; not in ways-shots and fedgen")
    shards: int = option(2, "shards of a client", (1, 1_000_000))
    power: float = option(1.0, "r-th largest client's rows ∝ r^-power", (0, 100))

    # shifts of clients' rows, on top of any partition (fedtune/data/shifts.py); the defaults change nothing
    thinning: float = option(0.0, "client r keeps r^-thinning of its training rows; r: its rank", (0, 100))
    rotation: float = option(0.0, "degrees that images turn from group to group", (-1e6, 1e6))
    feature_noise: float = option(
        0.0, "standard deviation at the last client; it grows linearly from 0 at the first", (0, 1e6)
    )
    swaps: int = option(0, "pairs of labels swapped in all groups but one", (0, 100_000))
    groups: int = option(4, "number of groups of consecutive clients; for rotation and swaps", (1, 1_000_000))
    label_noise: float = option(0.0, "share of a client's labels that are wrong", (0.0, 1.0))
    label_noise_spread: float = option(0.0, "the most by which that share varies; it is drawn for each client", (0, 1))
    noisy_clients: float = option(1.0, "probability that a client has wrong labels", (0.0, 1.0))
    noisy_splits: str = option("train", "where labels may be wrong: train, train+val")

    rounds: int = option(60, "T, rounds of a trial", (1, 1_000_000))
    pretrained: str = option("none", f"body that all models start from: none, {', '.join(BODIES)}")
    evaluation: str = option(
        "personal",
        "which model is scored, on which rows; personal: each client's own model on its own rows, global: the shared "
        "model on each client's rows, pooled: the shared model on all clients' rows together",
    )
    eval_clients: int = option(
        0, "clients that are scored, 0: all; drawn once and the same in every round", (0, 1_000_000)
    )
    all_classes: int = option(
        100,
        "test rows of all classes on which every client is also scored, 0: none; equally many per class",
        (0, 100_000_000),
    )

    batch: int = hyper(4, 1, 256, log=True, symbol="B", help="rows per mini-batch")
    local_epochs: int = hyper(1, 1, 20, log=True, symbol="E", help="passes over a client's rows per round")
    local_steps: int = hyper(
        0,
        1,
        1000,
        log=True,
        extra_values=(0,),
        help="mini-batches per round, and per epoch of an algorithm's extra phases; 0: full passes",
    )
    optimizer: str = hyper("sgd", choices=("sgd", "adam"), help="the clients' optimiser, reset in every round")
    lr: float = hyper(0.01, 1e-5, 1.0, log=True, symbol="η", help="the clients' learning rate")
    lr_decay: float = hyper(1.0, 0.9, 1.0, first_round=2, help="factor on lr after every round")
    momentum: float = hyper(0.5, 0.0, 0.99, help="momentum of SGD")
    weight_decay: float = hyper(0.0, 1e-6, 0.1, log=True, extra_values=(0.0,), help="L2 penalty in the optimiser")
    clip_norm: float = hyper(
        0.0, 0.1, 100.0, log=True, extra_values=(0.0,), help="bound on the norm of a client's gradient; 0: none"
    )
    averaging: str = hyper("rows", choices=("rows", "clients"), help="models are averaged over rows, or over clients")
    batch_norm: str = hyper(
        "averaged",
        choices=("averaged", "personal"),
        help="running statistics of shared parts: averaged over clients, or each client's own",
    )
    body_lr_scale: float = hyper(
        1.0,
        0.01,
        10.0,
        log=True,
        extra_values=(0.0,),
        help="factor on lr for the body; 0: the body is frozen and not sent",
    )

    # what accuracy costs: privacy, bytes, device seconds; with these defaults each part is off and changes no bit
    privacy: str = option("none", "none, or client: clip updates, add noise, count ε per client")
    sampling: str = option(
        "auto",
        "how participants are drawn: fixed: always as many, poisson: each client by itself; auto: poisson with privacy",
    )
    epsilon: float = option(0.0, "target ε at the last round, which sets update_noise; 0: none", (0.0, 1e6))
    privacy_delta: float = option(0.0, "δ of (ε, δ); 0: clients^-1.1", (0.0, 0.5))
    population: int = option(0, "compute ε as if there were so many clients, 0: clients", (0, 1_000_000_000))
    cohort: int = option(0, "as if so many of the population took part in a round", (0, 1_000_000_000))
    update_noise: float = hyper(
        0.0,
        0.3,
        10.0,
        log=True,
        extra_values=(0.0,),
        symbol="z",
        help="standard deviation of the noise on the sum of updates, in units of update_clip; with privacy 1 unless "
        "it or epsilon is given",
    )
    update_clip: float = hyper(
        0.0,
        0.001,
        100.0,
        log=True,
        extra_values=(0.0,),
        symbol="C",
        help="bound on the norm of a client's update; with privacy 1 unless it is given, or 0.1 where it adapts",
    )
    clip_quantile: float = hyper(
        0.0,
        0.1,
        0.9,
        extra_values=(0.0,),
        symbol="γ",
        help="share of updates that the bound should leave as they are: it adapts; 0: a fixed bound",
    )
    clip_rate: float = hyper(0.2, 0.05, 1.0, log=True, symbol="η_C", help="step of the adapting bound's logarithm")
    compress: str = hyper("none", choices=tuple(OF_CODECS), help="codec of what clients send")
    sent_share: float = hyper(0.1, 1e-4, 1.0, log=True, help="share of the numbers that topk and randk send")
    sent_bits: int = hyper(4, 2, 8, help="bits per number that qsgd sends")
    error_feedback: bool = hyper(
        True, help="add what the codec sign, topk or randk left out to the client's next update"
    )
    devices: str = option(
        "none",
        f"speeds of devices, for sim_seconds: {', '.join(profiles.NAMES)}, or your FILE.csv; none: alike, and device "
        "seconds are counted only if another of these fields, from row_seconds to selection, is not at its default",
    )
    row_seconds: float = option(0.005, "seconds that a training row takes on a device of speed 1", (0.0, 1e6))
    up_mbps: float = option(1.0, "megabits per second that a device sends", (1e-9, 1e9))
    down_mbps: float = option(10.0, "megabits per second that a device receives", (1e-9, 1e9))
    lag: float = option(0.0, "seconds before a device begins", (0.0, 1e9))
    speed_spread: float = option(0.6, "spread of log-normal speeds, on the log scale", (0.0, 10.0))
    mbps_spread: float = option(0.0, "spread of log-normal networks, on the log scale", (0.0, 10.0))
    server_seconds: float = option(0.0, "seconds of the server in every round", (0.0, 1e9))
    lost_share: float = option(0.0, "share of participants whose upload is lost", (0.0, 1.0))
    deadline: float = option(0.0, "device seconds after which an upload is late, 0: none", (0.0, 1e12))
    over_ask: float = option(1.0, "clients asked for each one that is wanted; the first to answer count", (1.0, 100.0))
    selection: str = option("uniform", f"how participants are chosen: {', '.join(SELECTIONS)}")
    offered: int = option(
        0,
        "clients that power-of-choice asks for their loss, at least the participants; 0: twice as many",
        (0, 1_000_000),
    )

    def __post_init__(self) -> None:
        """Validate all that can be checked without loading data; UserError otherwise."""
        for f in fields(self):
            if "hp" not in f.metadata:
                object.__setattr__(self, f.name, _typed(f.name, getattr(self, f.name), type(f.default)))
        check_all(self)
        if user_metadata.is_partition(self.partition):
            object.__setattr__(self, "clients", user_metadata.clients(self.partition))
        if flwr_partitions.is_named(self.partition):
            object.__setattr__(self, "partition", flwr_partitions.canonical(self.partition))
            object.__setattr__(self, "clients", flwr_partitions.clients(self.partition) or self.clients)
        for name, kind, allowed in (
            ("dataset", "data set", datasets.names()),
            ("partition", "partition", PARTITIONS),
            ("normalise", "choice of normalise", ("train", "none")),
            ("x_as", "choice of x_as", (user_rows.AUTO, *user_rows.KINDS)),
            ("evaluation", "evaluation rule", EVALUATIONS),
            ("noisy_splits", "choice of noisy_splits", ("train", "train+val")),
            ("pretrained", "pretrained body", ("none", *BODIES)),
            ("privacy", "kind of privacy", ("none", "client")),
            ("sampling", "choice of sampling", ("auto", "fixed", "poisson")),
            ("selection", "choice of selection", SELECTIONS),
        ):
            is_users = name in OWN and user_files.is_reference(getattr(self, name), allowed)
            is_users = is_users or (name == "partition" and flwr_partitions.is_named(self.partition))
            if not is_users and getattr(self, name) not in allowed:
                raise UserError(f"{unknown(kind, getattr(self, name), allowed)}{OWN.get(name, '')}")
        catalogue.members(self.model)
        profiles.require(self.devices, self.clients)
        self._check_numbers()
        self._check_cohort()
        self._check_against_data()

    def _check_numbers(self) -> None:
        for f in fields(self):
            value, bounds = getattr(self, f.name), f.metadata.get("bounds")
            if bounds and not bounds[0] <= value <= bounds[1]:
                raise UserError(f"{f.name} must be in {short(bounds[0])}..{short(bounds[1])}, but got {value}")
        if self.eval_clients == 1 or self.eval_clients > self.clients:
            rule = f"2 to the {self.clients} clients there are, or 0 for all"
            raise UserError(f"eval_clients must be {rule}, but got {self.eval_clients}")
        if not (self.val_share > 0 and self.test_share > 0 and self.val_share + self.test_share < 1):
            got = f"{self.val_share} and {self.test_share}"
            raise UserError(f"val_share and test_share must be above 0 and leave training rows, but got {got}")

    def _check_cohort(self) -> None:
        """UserError if privacy's sampling and the choice of participants exclude each other, or one would not act."""
        for names, other, needed in (
            (("epsilon", "privacy_delta", "population", "cohort"), "privacy", "client"),
            (("speed_spread", "mbps_spread"), "devices", "lognormal"),
            (("offered",), "selection", "power-of-choice"),
        ):
            for f in fields(self) if getattr(self, other) != needed else ():
                if f.name in names and (value := getattr(self, f.name)) != f.default:
                    raise UserError(f"{f.name} acts only with --{other} {needed}, but got {value:g} without it")
        how = "privacy" if self.privacy != "none" else "sampling poisson" if self.is_poisson else ""
        whose = "needs clients that take part whatever the others do"
        if how and self.over_ask > 1:
            raise UserError(f"{how} {whose}, but got over_ask {self.over_ask:g}: the first to answer; leave it out")
        if how and self.selection != "uniform":
            raise UserError(f"{how} {whose}, but got selection {self.selection}: by their losses; leave it out")
        if self.privacy != "none" and self.deadline and not self.local_steps:
            rule = "a deadline under privacy needs times that do not depend on clients' rows"
            raise UserError(f"{rule}, but got local_steps 0: passes over them; give --local-steps")

    def _check_against_data(self) -> None:
        if user_files.is_reference(self.dataset, datasets.names()) and not user_metadata.is_own(self.dataset):
            return  # a run whose data set is not available here
        if self.x_as != user_rows.AUTO and not user_metadata.is_own(self.dataset):
            raise UserError(f"x_as is for your own arrays, but {self.dataset} is a built-in data set; leave it out")
        *shape, classes = datasets.describe(self.dataset, self.image_size, self.x_as)
        if self.feature_noise and datasets.has_tokens(self.dataset, self.x_as):
            raise UserError(f"feature_noise is added to real features, but {self.dataset} holds tokens; leave it out")
        if self.rotation and len(shape) != 3:
            raise UserError(f"rotation is for images, but {self.dataset} has rows of {tuple(shape)}; leave it out")
        self._check_model(tuple(shape))
        if not 0 <= self.skip_classes < classes - 1:
            rule = f"0 to {classes - 2} to leave two of the {classes} classes of {self.dataset}"
            raise UserError(f"skip_classes must be {rule}, but got {self.skip_classes}")
        classes -= self.skip_classes
        if not (self.keep_classes == 0 or 2 <= self.keep_classes <= classes):
            rule = f"2 to the {classes} classes there are, or 0 for all"
            raise UserError(f"keep_classes must be {rule}, but got {self.keep_classes}")
        classes = self.keep_classes or classes
        if self.partition == "ways-shots" and self.ways > classes:
            rule = f"at most the {classes} classes of {self.dataset} that are in use"
            raise UserError(f"ways must be {rule}, but got {self.ways}; give --ways {classes} or another --partition")
        if 2 * self.swaps > classes:
            pairs = f"{classes // 2} pairs of the {classes} classes"
            raise UserError(f"swaps must be at most {pairs}, but got {self.swaps}")
        by_owner = self.partition in ("natural", "domains")
        needing = f"partition {self.partition}" if by_owner else "min_rows" if self.min_rows else ""
        if needing and not datasets.has_owners(self.dataset):
            owned = ", ".join(name for name in datasets.SOURCES if datasets.has_owners(name))
            raise UserError(
                f"{needing} needs a data set with the owner of each row ({owned}), but got "
                f"{self.dataset}; your own data need an array owner"
            )

    def _check_model(self, shape: tuple[int, ...]) -> None:
        """UserError for a built-in model that does not take rows of this kind."""
        tokens = datasets.has_tokens(self.dataset, self.x_as)
        fit = catalogue.taking(tokens, len(shape))
        for member in catalogue.members(self.model):
            if (base := catalogue.called(member)[0]) in catalogue.WIDTHS and base not in fit:
                rows = f"{self.dataset}, {'tokens' if tokens else 'numbers'} of shape {'×'.join(map(str, shape))}"
                advice = f"give --model {' or '.join(fit[:2])}, or your own"
                raise UserError(f"model {member} does not take the rows of {rows}; {advice}")

    @property
    def participants(self) -> int:
        """m, the number of clients in a round: at least one."""
        return max(1, int(self.participation * self.clients + 0.5))

    @property
    def least_asked(self) -> int:
        """How many clients a round asks at least: with Poisson sampling there may be none."""
        return 0 if self.is_poisson else min(self.clients, math.ceil(round(self.over_ask * self.participants, 9)))

    @property
    def is_poisson(self) -> bool:
        """Whether each client takes part by its own chance: `auto` does with privacy, whose accounting counts on it."""
        return self.sampling == "poisson" or (self.sampling == "auto" and self.privacy != "none")

    @property
    def timed(self) -> bool:
        """Whether device seconds are counted."""
        return any(getattr(self, f.name) != f.default for f in fields(self) if f.name in OF_DEVICES)

    def devices_of(self, owners: tuple[tuple[str, ...], ...], seed: int) -> profiles.Devices:
        """The clients' devices."""
        network = profiles.Network(self.up_mbps, self.down_mbps, self.lag, self.speed_spread, self.mbps_spread)
        return profiles.of(self.devices, network, owners, self.clients, seed)

    @property
    def frozen(self) -> tuple[str, ...]:
        """Parts that are not trained: they keep their weights and statistics, and are not sent."""
        return () if self.body_lr_scale else ("body",)

    def sent(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """The shared parts of an algorithm that are sent."""
        return tuple(part for part in parts if part not in self.frozen)

    def idle(self) -> dict[str, str]:
        """Hyperparameters that cannot have an effect here, each with the reason."""
        reasons = {}
        if self.optimizer == "adam":
            reasons["momentum"] = "--optimizer is adam"
        if self.local_steps:
            reasons["local_epochs"] = f"--local-steps {self.local_steps} counts steps instead"
        if not (self.privacy == "none" or self.clip_quantile):
            reasons["clip_rate"] = "clip_quantile is 0, so the bound is fixed"
        of_part = {True: f"--privacy is {self.privacy}", False: f"--compress is {self.compress}"}
        return reasons | {name: of_part[name in OF_PRIVACY] for name in sorted(self.off - {"compress"})}

    @property
    def off(self) -> set[str]:
        """Hyperparameters of privacy and codecs that are off: no configuration has them."""
        of_codecs = {*CODECS_OF} - {*OF_CODECS[self.compress]}
        off = of_codecs | ({*OF_PRIVACY} if self.privacy == "none" else set())
        return off | ({"compress"} if self.compress == "none" else set())

    def override(self, **values: Any) -> Scenario:
        """The same scenario with some fields changed; UserError with the nearest name if there is no such field."""
        require_known("scenario field", values, [f.name for f in fields(self)], "fedtune run --help-all")
        return replace(self, **values)


def about(name: str) -> str:
    """What a field is, with the partitions that use it if they are few."""
    (f,) = (f for f in fields(Scenario) if f.name == name)
    using = [partition for partition, names in USES.items() if name in names]
    text = f.metadata["hp"].help if "hp" in f.metadata else f.metadata["help"]
    return f"{', '.join(using)}: {text}" if 0 < len(using) <= MAX_PARTITIONS_NAMED else text


def _typed(name: str, value: Any, kind: type) -> Any:
    try:
        value = python_value(value)
        if isinstance(value, bool) or (kind is int and float(value) != int(float(value))):
            raise ValueError
        return kind(float(value)) if kind is int else kind(value)
    except (TypeError, ValueError, OverflowError):
        word = {int: "a whole number", float: "a number"}.get(kind, "text")
        raise UserError(f"{name} must be {word}, but got {shown(value)}") from None
