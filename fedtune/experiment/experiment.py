"""An experiment: everything that defines a run, except the configuration that is being tuned."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedtune.core import randomness
from fedtune.core.errors import UserError, require_known
from fedtune.core.hyper import Hyperparameter, hyperparameters
from fedtune.core.metrics import METRICS, OBJECTIVES
from fedtune.core.workload import Measures, Trainer, Traits, Workload
from fedtune.data import datasets
from fedtune.experiment import hooks, plans, privacy, refusals, registry, scenarios
from fedtune.experiment.algorithm import Algorithm, Phase, Task, first_round, part_of, parts
from fedtune.experiment.scenario import CODECS_OF, OF_PRIVACY, Scenario
from fedtune.experiment.terms import NetStructure
from fedtune.experiment.user_scenario import data_in_words, notes
from fedtune.nn import architectures, catalogue
from fedtune.nn.net import layer_of, rule_of
from fedtune.user_code import user_files

if TYPE_CHECKING:
    from fedtune.experiment.user_metrics import OwnMetric


@dataclass(frozen=True, kw_only=True)
class Experiment(Workload):
    """An algorithm in a scenario, with a seed, a device, and fixed hyperparameters: a `Workload` of the engine's."""

    algorithm: str
    scenario: Scenario
    seed: int = 0
    executor: str = "auto"
    device: str = "cpu"
    pinned: dict[str, Any] = field(default_factory=dict)  # --set: fixed hyperparameters
    preset: str = ""  # --preset: the name of other defaults
    given: tuple[str, ...] = ()  # scenario fields that the user gave: a preset does not change them
    start: str = "common"  # initial values of clients' own parts: common (the same for all), or own (drawn for each)
    start_from: str = ""  # FILE.pt[:part]: initial weights instead of random ones
    metrics: tuple[str, ...] = ()  # FILE.py:NAME: the user's own metrics, in addition to the built-in ones
    own: tuple[user_files.UserFile, ...] = ()  # the user's files that it uses
    test_every: int = 1  # test rows are scored every this many rounds, and in the last
    # defaults from a run's record, which take precedence over declarations
    defaults: dict[str, Any] = field(default_factory=dict)
    trainer: Trainer = field(default=Trainer(), compare=False, repr=False)  # the engine, where it is to be trained

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickle on a worker: register the files that came along."""
        self.__dict__.update(state)
        user_files.register(self.own)

    @property
    def name(self) -> str:
        """The algorithm's name."""
        return self.algorithm

    @property
    def rounds(self) -> int:
        """The rounds of a whole run."""
        return self.scenario.rounds

    @property
    def measures(self) -> Measures:
        """The metrics of the engine and the user's own."""
        parts = {"": True, "privacy": self.scenario.privacy != "none", "devices": self.scenario.timed}
        known = {n: mode for n, mode in OBJECTIVES.items() if parts[METRICS[n].needs]}
        return Measures(known | {n: mode for m in self.own_metrics for n, mode in m.modes().items()})

    @property
    def traits(self) -> Traits:
        """What the algorithm declares.

        The derived space has the clients' optimisation and the algorithm's ranges, but what matters late only or
        changes the shape of the weights; choices, which are variants of a method, are left out.
        """
        cls, declared, private = self._class(), hyperparameters(self._class()), self.scenario.privacy != "none"
        ranges = [n for n, hp in declared.items() if hp.low is not None and not hp.late and n not in cls.structural]
        fixed_bound = "update_clip" in self._with_privacy() and refusals.releases(cls) != "nothing"
        return Traits(
            searched=dict.fromkeys([*ranges, "lr", "momentum", "local_epochs", *["update_clip"] * fixed_bound], {}),
            # what one ε stands for stays as it is
            structural=(*cls.structural, "batch_norm", *["update_noise", "participation"] * private),
            schedule=cls.schedule,
            late={n for n, hp in declared.items() if hp.late},
            common=frozenset(hyperparameters(Scenario)),
            needs={name: {"compress": codecs} for name, codecs in CODECS_OF.items()},
            depends_on_horizon=cls.depends_on_horizon or (private and bool(self.scenario.epsilon)),
        )

    def _class(self) -> type[Algorithm]:
        user_files.register(self.own)
        return registry.find(self.algorithm)

    def with_seed(self, seed: int, checking: bool = False) -> Experiment:
        """The same with another seed: the final check trains as trials do."""
        return self if seed == self.seed else replace(self, seed=seed)

    def as_recorded(self, record: Mapping[str, Any]) -> Experiment:
        """The same with the executor that was chosen when its run began."""
        return replace(self, executor=record.get("executor") or self.executor)

    def spaces(self) -> dict[str, Any]:
        """The algorithm's search spaces by name, as its file in search_spaces or your file has them."""
        self._class()
        return registry.spaces(self.algorithm)

    def idle(self, config: dict[str, Any]) -> dict[str, str]:
        """The hyperparameters without an effect under a configuration, with reasons; UserError if it is invalid."""
        algorithm, scenario = self.resolve(config)
        unsent = dict.fromkeys((*OF_PRIVACY, "compress", *CODECS_OF), f"{self.algorithm} sends nothing")
        reasons = scenario.idle() | (unsent if refusals.releases(type(algorithm)) == "nothing" else {})
        return reasons | hooks.by_name(algorithm, "idle", algorithm.idle(scenario), "reasons")

    def known(self, config: dict[str, Any]) -> dict[str, float]:
        """ε of a whole run with privacy."""
        return privacy.spent(*self.released(config), self.scenario.rounds)

    def released(self, config: dict[str, Any]) -> tuple[str, Scenario]:
        """How the server uses what clients send (`refusals.releases`), and the scenario of a configuration."""
        alg, scenario = self.resolve(config)
        return refusals.releases(type(alg)), scenario

    def first_rounds(self, config: dict[str, Any], names: Iterable[str]) -> dict[str, int]:
        """The first round whose evaluation can depend on each of these hyperparameters, under a configuration."""
        algorithm, _ = self.resolve(config)
        return {name: first_round(algorithm, name) for name in names}

    def describe(self) -> list[str]:
        """Lines about what is trained: data, scoring, initial weights."""
        lines = [f"data: {words}"] if (words := data_in_words(self.scenario)) else []
        lines += [f"note: {note}" for note in (*notes(self.scenario), *privacy.notes(*self.released({})))]
        for name in sorted(self.pinned.keys() & self.resolve({})[1].off - {"compress"}):
            acts = f"compress {' or '.join(CODECS_OF[name])}" if name in CODECS_OF else "privacy client"
            lines.append(f"note: {name} acts only with --{acts}")
        if self.preset == "as_text" and (differs := beside_text(self._class())):
            lines.append(f"note: {differs}")
        lines.append(f"scored: {self.describe_scoring()}")
        return lines + ([f"started: {self.describe_start()}"] if self.initial_weights else [])

    def to_record(self) -> dict[str, Any]:
        """What the record of a run holds of it."""
        return {
            "algorithm": self.algorithm,
            "scenario": asdict(self.resolve({})[1]),
            "pinned": self.pinned,
            "preset": self.preset,
            "defaults": self.configuration({}),
            "scored": self.describe_scoring(),
            **self.beginning(),
            "seed": self.seed,
            "executor": self.executor,
            "device": self.device,
        }

    def to_best(self, scenario: str, config: dict[str, Any], rounds: int | None) -> dict[str, Any]:
        """What best.yaml holds of it, with a configuration.  rounds: of the trial, if it was not limited by rounds."""
        scenario_named = scenarios.find(scenario)
        overrides = {n: v for n, v in vars(self.scenario).items() if v != getattr(scenario_named, n)}
        content = {
            "algorithm": self.algorithm,
            "scenario": scenario,
            "overrides": overrides | ({} if rounds is None else {"rounds": rounds}),
            "seed": self.seed,
            "hyperparameters": self.configuration(config),
            **self.beginning(),
        }
        return content | ({} if self.executor == "auto" else {"executor": self.executor})

    def to_plain(self) -> dict[str, Any]:
        """The whole experiment as plain values, with every default; files by name and hash."""
        values = asdict(replace(self, own=(), defaults=self.configuration({})))
        del values["trainer"]
        return values | {"own": [(file.name, file.sha256) for file in self.own]}

    def hyperparameters(self) -> dict[str, Hyperparameter]:
        """The hyperparameters of the algorithm and the scenario."""
        return hyperparameters(Scenario) | hyperparameters(self._class())

    def resolve(self, config: dict[str, Any]) -> tuple[Algorithm, Scenario]:
        """The algorithm and scenario under a configuration; UserError for unknown names and bad values."""
        cls, declared = self._class(), self.hyperparameters()
        own, values = hyperparameters(cls), self._preset(cls) | self.defaults | self.pinned | config
        require_known(f"hyperparameter of {self.algorithm}", values, declared, f"fedtune list {self.algorithm}")
        of_algorithm = {n: v for n, v in values.items() if n in own}
        scenario = self.scenario.override(**{n: v for n, v in values.items() if n not in of_algorithm})
        return cls(**of_algorithm), scenario

    def _preset(self, cls: type[Algorithm]) -> dict[str, Any]:
        # without a preset "as_text", the defaults follow the text
        presets: dict[str, Mapping[str, Any]] = {"as_text": {}} | dict(cls.presets)
        require_known(f"preset of {self.algorithm}", filter(None, [self.preset]), presets)
        values = self._with_privacy() | dict(presets.get(self.preset, {}))
        return {n: v for n, v in values.items() if n not in self.given}

    def _with_privacy(self) -> dict[str, Any]:
        """The defaults that are others with privacy of clients: a client's rows are data; updates need bound and noise.

        A noise of 0 has to be given, as has that of an ε.
        """
        s = self.scenario
        bounded = s.update_clip or s.clip_quantile or self.pinned.get("clip_quantile")
        values = {"averaging": "clients"} | ({} if bounded else {"update_clip": 1.0})
        values |= {} if s.update_noise or s.epsilon else {"update_noise": 1.0}
        return values if s.privacy == "client" else {}

    def configuration(self, config: dict[str, Any]) -> dict[str, Any]:
        """The value of every hyperparameter under a configuration, but of privacy and codecs that are off."""
        off = self.resolve(config)[1].off
        return {n: v for n, v in self._values(config).items() if n in config or n not in off}

    def draws(self, config: dict[str, Any]) -> tuple[str, ...]:
        """What the draws of privacy depend on beside seed and round, so that no two trials share them; else nothing."""
        scenario = self.resolve(config)[1]
        if (private := privacy.Privacy.of(scenario)) is None:
            return ()
        values = {n: v for n, v in self._values(config).items() if n not in scenario.off}
        values["update_noise"] = private.noise  # also where an ε sets it
        return (user_files.plain_name(self.algorithm), json.dumps(values, sort_keys=True))

    def _values(self, config: dict[str, Any]) -> dict[str, Any]:
        alg, scenario = self.resolve(config)
        return {n: getattr(alg if hasattr(alg, n) else scenario, n) for n in self.hyperparameters()}

    def default(self, given: dict[str, Any] | None = None) -> dict[str, Any]:
        """The default of every hyperparameter, but for those given; an open choice has its actual value (None: lr)."""
        alg, values = self.resolve(given or {})[0], self._values(given or {})
        values |= hooks.by_name(alg, "resolved_defaults", alg.resolved_defaults(), "values")
        return {n: values["lr"] if v is None else v for n, v in values.items()}

    @property
    def own_metrics(self) -> tuple[OwnMetric, ...]:
        """The user's own metrics."""
        if not self.metrics:
            return ()
        from fedtune.experiment import user_metrics

        return user_metrics.load(self.metrics)

    @property
    def has_own_code(self) -> bool:
        """Whether the algorithm or a model is the user's own."""
        is_users = not self._class().__module__.startswith("fedtune.trainables.")
        return is_users or any(map(catalogue.is_own, catalogue.members(self.scenario.model)))

    def check(self, config: dict[str, Any] | None = None) -> None:
        """Raise UserError for anything that would stop this experiment after its start; no data is loaded."""
        alg, scenario, forms = self._with_forms(config)
        if lacking := set(alg.shared) - set(forms[0].parts):
            raise UserError(
                f"{self.algorithm} averages {', '.join(sorted(lacking))}, but a model of {scenario.model} has "
                f"{', '.join(forms[0].parts)}; `shared` must name parts of the model, or parts that build adds"
            )
        _require_what_it_computes_with(alg, self.algorithm, scenario, forms)
        if scenario.batch == 1:
            _require_fit(alg, scenario, self.seed)
        if scenario.evaluation != "personal":
            _require_global(alg, scenario, forms, self.algorithm)
        if not _averages_alike(alg, forms, scenario):
            raise UserError(
                f"{self.algorithm} averages {' and '.join(alg.shared)}, so every client must have the same shapes "
                f"there, but the architectures of {scenario.model} differ; give --model one architecture, or use "
                f"{', '.join(fitting(scenario))}"
            )
        refusals.require(self.algorithm, alg, scenario, forms)
        privacy.Privacy.of(scenario)
        if self.initial_weights:
            self.describe_start(config)
        for metric in self.own_metrics:
            metric.check(shape_of(scenario)[1])

    def _with_forms(self, config: dict[str, Any] | None) -> tuple[Algorithm, Scenario, tuple[NetStructure, ...]]:
        alg, scenario = self.resolve(config or {})
        return alg, scenario, _forms(alg, scenario, tuple(file.sha256 for file in self.own))

    @property
    def initial_weights(self) -> str:
        """FILE.pt[:part] with initial weights: as given, or the scenario's body; "" for random ones."""
        body = self.scenario.pretrained
        return self.start_from or (f"{body}:body" if body != "none" else "")

    def beginning(self) -> dict[str, str]:
        """The options that determine the initial weights, with absolute paths; none for the common draw."""
        options = {"start": self.start} if self.start != "common" else {}
        if not self.start_from:
            return options
        from fedtune.experiment import initial_weights

        name, part = initial_weights.parse(self.start_from)
        path = next((file.path for file in self.own if file.name == name), name)
        return options | {"start_from": path + (f":{part}" if part else "")}

    def describe_start(self, config: dict[str, Any] | None = None) -> str:
        """What starts from given weights and what does not, in words; UserError if nothing does."""
        from fedtune.experiment import initial_weights

        (alg, scenario, forms), targets = self._with_forms(config), []
        for i, form in enumerate(forms):
            staying = form.stays | (form.buffers if scenario.batch_norm == "personal" else set())
            shared = {n for n in form.shapes if part_of(n) in scenario.sent(alg.shared) and n not in staying}
            clients = range(i, scenario.clients, len(forms))
            targets.append(initial_weights.Target(form.shapes, shared, clients, form.head_was))
        name, part = initial_weights.parse(self.initial_weights)
        return initial_weights.describe(initial_weights.find(name), targets, part)

    def describe_scoring(self, config: dict[str, Any] | None = None) -> str:
        """Which model is evaluated, and on which rows, in words."""
        alg, scenario, (form, *_) = self._with_forms(config)
        scored = [p for p in alg.predicts or form.parts if p not in scenario.frozen]
        averaged_parts = {part_of(n) for n in form.shapes if n not in form.stays}.intersection(alg.shared)
        shared, own = [p for p in scored if p in averaged_parts], [p for p in scored if p not in averaged_parts]
        model = "each client's own model" if not shared else "the averaged model"
        if shared and own:
            model = f"the averaged {' and '.join(shared)} with each client's own {' and '.join(own)}"
        model = alg.scored_model or model
        if scenario.frozen:
            model += f", the {' and '.join(scenario.frozen)} with its initial weights"
        if any(part_of(n) in shared for n in form.buffers) and not form.stays:
            rule = {"averaged": "averaged", "personal": "each client's own"}[scenario.batch_norm]
            model += f", BatchNorm statistics {rule}"
        if form.adapts:
            model += ", trained on the client's own rows before it is scored"
        rows = "all clients' rows as one test set" if scenario.evaluation == "pooled" else "each client's own rows"
        sample = f", {scenario.eval_clients} of {scenario.clients} clients" if scenario.eval_clients else ""
        return f"{model}, on {rows}{sample}"


@lru_cache(maxsize=32)
def _forms(alg: Algorithm, scenario: Scenario, contents: tuple[str, ...]) -> tuple[NetStructure, ...]:
    """The structures of a scenario's architectures with the algorithm's parts; contents: hashes of the user's files."""
    return tuple(_form(alg, scenario, net) for net in _architectures(scenario))


def _architectures(scenario: Scenario) -> list[architectures.Net]:
    """The nets of the clients' architectures; UserError unless they run on the data set's rows."""
    (shape, classes), dtype = shape_of(scenario), dtype_of(scenario)
    width, nets = architectures.width(scenario.model, shape, classes, scenario.features, dtype), []
    for name in catalogue.members(scenario.model)[: scenario.clients]:
        nets.append(architectures.build(name, shape, classes, width))
        architectures.require_fit(name, nets[-1], shape, dtype)
    return nets


def _form(alg: Algorithm, scenario: Scenario, architecture: architectures.Net) -> NetStructure:
    """The structure of an architecture with the algorithm's own parts; the architecture itself is not changed."""
    shape, classes = shape_of(scenario)
    net: nn.Module = copy.copy(architecture)
    net._modules = dict(architecture._modules)  # large nets are built once for all algorithms
    with randomness.seeded(0):
        task = task_of(scenario, classes, shape, 0, dtype_of(scenario))
        net = hooks.built(alg, net, task)
    unsent = frozenset(hooks.stays(alg, net))
    return NetStructure(
        parts=tuple(parts(net)),
        shapes={n: t.shape for n, t in net.state_dict().items()},
        buffers=frozenset(n for n, _ in net.named_buffers()),
        head_was=architecture.head_was,
        stays=unsent | plans.not_given(alg, net, task),
        unsent=unsent,
        adapts=bool(plans.adapting(alg, task)),
    )


def shape_of(scenario: Scenario) -> tuple[architectures.Shape, int]:
    """The shape of a data set's row, and the number of classes."""
    *shape, classes = datasets.describe(scenario.dataset, scenario.image_size, scenario.x_as)
    return tuple(shape), classes


def dtype_of(scenario: Scenario) -> torch.dtype:
    """The type of the data set's rows: tokens are integers."""
    return torch.int64 if datasets.has_tokens(scenario.dataset, scenario.x_as) else torch.float32


def beside_text(cls: type[Algorithm]) -> str:
    """In which way an algorithm's preset `as_text` is not the paper's text, in words."""
    if cls.unlike_text:
        return f"not as in the text: {cls.unlike_text}"
    if cls.as_in_text or "as_text" in cls.presets:
        return ""
    ours = cls.__module__.startswith("fedtune.trainables.")
    return f"no preset as_text{', because its paper was not at hand' if ours else ''}: the defaults stay as they are"


def task_of(
    scenario: Scenario, classes: int, shape: architectures.Shape, seed: int, dtype: torch.dtype = torch.float32
) -> Task:
    """The Task of a scenario on data of this shape and type."""
    return Task(
        classes=classes,
        features=architectures.width(scenario.model, shape, classes, scenario.features, dtype),
        clients=scenario.clients,
        batch=scenario.batch,
        seed=seed,
        shape=shape,
        models=catalogue.members(scenario.model),
        rounds=scenario.rounds,
        taking_part=scenario.participants,
        averaging=scenario.averaging,
    )


def built_in(workload: Workload, command: str) -> Experiment:
    """The workload as an experiment, for a command that makes sense for nothing else; UserError for a program."""
    if isinstance(workload, Experiment):
        return workload
    raise UserError(f"{command} is for algorithms that fedtune trains itself, but got {workload.name}, a program")


def _require_global(alg: Algorithm, scenario: Scenario, forms: tuple[NetStructure, ...], name: str) -> None:
    """UserError unless there is one global model to score: every part that predicts must be shared."""
    for form in forms:
        scored = set(alg.predicts or form.parts) - set(scenario.frozen)
        stays = sorted(n for n in form.stays if part_of(n) not in scenario.frozen)
        own = sorted(scored if form.adapts else scored - set(alg.shared)) or stays[:5]
        if own:
            raise UserError(
                f"evaluation rule {scenario.evaluation!r} scores one global model, but under {name} {', '.join(own)} "
                "stays with each client; use --evaluation personal, or an algorithm that shares the whole model"
            )


def _require_what_it_computes_with(
    alg: Algorithm, name: str, scenario: Scenario, forms: tuple[NetStructure, ...]
) -> None:
    """UserError unless shared parts have tensors, and heads are one linear layer if the algorithm needs that."""
    if alg.shared and not any(part_of(n) in alg.shared for n in forms[0].shapes):
        raise UserError(
            f"{name} averages {' and '.join(alg.shared)}, but {scenario.model} has no tensors there; use an algorithm "
            "that shares more, fedavg for instance, or a model that learns there"
        )
    for form in forms if alg.linear_head else ():
        head = {n: shape for n, shape in form.shapes.items() if part_of(n) == "head"}
        if head.keys() != {"head.weight", "head.bias"} or len(head["head.weight"]) != 2:
            raise UserError(
                f"{name} computes with the weight and the bias of a linear head, but that of {scenario.model} has "
                f"{', '.join(head) or 'no tensors'}; move all layers but the last linear one into the body"
            )


def _averages_alike(alg: Algorithm, forms: tuple[NetStructure, ...], scenario: Scenario) -> bool:
    """Whether the averaged tensors have the same names and shapes in all nets."""
    sent = scenario.sent(alg.shared)
    shared = [{n: s for n, s in form.shapes.items() if part_of(n) in sent and n not in form.unsent} for form in forms]
    return all(s == shared[0] for s in shared)


def fitting(scenario: Scenario) -> list[str]:
    """The algorithms, some with a --set, whose shared parts have the same shapes in a scenario's architectures."""
    nets, commands = _architectures(scenario), []
    for name in registry.names():
        cls = registry.find(name)
        for values in ({}, dict(cls.for_mixed_models)):
            alg = cls(**values)
            try:
                forms = tuple(_form(alg, scenario, net) for net in nets)
                _require_what_it_computes_with(alg, name, scenario, forms)
            except UserError:  # it needs another model, for example wider features
                continue
            if _averages_alike(alg, forms, scenario):
                commands.append(" ".join([name, *(f"--set {n}={v}" for n, v in values.items())]))
                break
    return commands


def _require_fit(alg: Algorithm, scenario: Scenario, seed: int) -> None:
    """UserError if round 1 trains on a batch of one row a part that needs two, as BatchNorm does."""
    (shape, classes), dtype = shape_of(scenario), dtype_of(scenario)
    task = task_of(scenario, classes, shape, seed, dtype)._replace(t=1)
    plan: list[Any] = []
    with suppress(Exception):  # other errors are reported where it runs
        plan += alg.round(task)
    trained = {p for phase in plan if isinstance(phase, Phase) for p in phase.train or ("body", "head")}
    for name, net in zip(task.models, _architectures(scenario), strict=False):
        for part, module in net.named_children():
            module.train(part in trained and part not in scenario.frozen)
        try:
            with torch.no_grad(), randomness.seeded(0):
                net(torch.zeros(1, *shape, dtype=dtype))
        except Exception as error:  # other errors are reported where the net is trained
            if rule := rule_of(error, net):
                raise UserError(f"{rule}; {layer_of(error, net)} of {name}") from error
