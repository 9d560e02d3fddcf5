"""A comparison as it is planned, checked before anything starts: searches alike but for algorithm and space."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedtune.core import terminal
from fedtune.core.errors import Unfit, UserError, unknown
from fedtune.core.terminal import say, several
from fedtune.experiment.experiment import Experiment, fitting
from fedtune.experiment.privacy import Privacy
from fedtune.experiment.scenarios import OWN, find
from fedtune.programs.naming import is_program
from fedtune.runs import user_copies
from fedtune.runs.choice import usual_runs
from fedtune.runs.files import AGAIN, WIDENED, RunFiles
from fedtune.studies.comparison.text import listed
from fedtune.studies.options import BASELINES, LENDER, ComparisonOptions, compared, variant
from fedtune.tuning import plan, schedulers
from fedtune.tuning import space as spaces
from fedtune.tuning.options.search import SearchOptions
from fedtune.tuning.options.types import AUTO
from fedtune.tuning.plan import EarlierSearch, SearchPlan
from fedtune.tuning.ranges import Widened
from fedtune.tuning.searchers import EXTENDABLE
from fedtune.user_code import user_files
from fedtune.user_code.user_files import UserFile, plain_name

PLAINEST = ("fedavg", "local")  # what the control searches twice, if it is compared
OTHER_DRAWS = 10**6  # added to a searcher's seed


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """A comparison that has been checked and can start.

    searches of the first, second, … search of every algorithm: plans by algorithm, in the order of --algos; they differ
             only in algorithm and space, and from number to number in their seeds
    control  the plainest algorithm, and the name under which it is searched once more with other draws; or ()
    """

    options: ComparisonOptions
    folder: Path
    searches: tuple[dict[str, SearchPlan], ...]
    control: tuple[str, ...] = ()
    baselines: tuple[str, ...] = ()  # algorithms that the others are tested against
    lender: str = ""  # the algorithm whose tuned values the others are also trained with
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)  # who cannot take part, and why
    before: int = 0  # trials of each search before its ranges were widened
    widened: tuple[str, ...] = ()  # the widened ranges, in words

    @property
    def first(self) -> SearchPlan:
        """The first search's plan, for everything that all share."""
        return next(iter(self.plans.values()))

    @property
    def plans(self) -> dict[str, SearchPlan]:
        """Those of the first searches, by algorithm."""
        return self.searches[0]

    @property
    def every(self) -> list[SearchPlan]:
        """The plans of all searches, in the order in which they run."""
        return [p for of in self.searches for p in of.values()]

    @property
    def compared(self) -> dict[str, SearchPlan]:
        """The plans of every algorithm's first search, without the control's."""
        return {n: p for n, p in self.plans.items() if n not in self.control[1:]}

    @property
    def borrowers(self) -> list[str]:
        """Who is also trained with the lender's values: all that are not the lender itself, under any name."""
        lender = self.plans[self.lender].workload.name if self.lender else ""
        return [n for n, p in self.plans.items() if lender and p.workload.name != lender]

    @property
    def trials(self) -> int:
        """The trials of each search."""
        return self.before + self.first.trials

    @property
    def unlike(self) -> list[str]:
        """Hyperparameters of the scenario that are not searched, and differ between algorithms by a preset, in words.

        The value that most have is said last.
        """
        names: dict[str, dict[str, list[str]]] = {}  # of algorithms, by hyperparameter and value
        for name, p in self.compared.items():
            fixed = p.workload.configuration({})
            for n in sorted(_not_searched(p) & fixed.keys()):
                names.setdefault(n, {}).setdefault(terminal.short(fixed[n]), []).append(name)
        lines = []
        for n, by_value in names.items():
            *some, usual = sorted(by_value, key=lambda value: len(by_value[value]))
            each = "; ".join(f"{value} for {', '.join(by_value[value])}" for value in some)
            lines += [f"{n} is {each}, and {usual} for all others"] * bool(some)
        return lines

    @property
    def in_words(self) -> list[str]:
        """What it will do."""
        p, k, options = self.first, len(self.searches), self.options
        own = [n for n in self.compared if n not in self.baselines]
        own += [f"the baseline{'s' * (len(self.baselines) > 1)} {listed(self.baselines)}"] if self.baselines else []
        own += [f"the control {name}" for name in self.control[1:]]
        times = f"{several(len(self.plans), 'algorithm')} ({', '.join(own)}) × {several(k, 'search')}"
        trials = f"{several(len(self.every) * p.trials, 'trial')} of at most {p.budget.text}"
        wider = "; half as many once more, if --widen widens a range" * options.widen
        choosing = f"about {several(self.runs[1], 'run')} to choose among each search's best, and " * bool(p.choosing)
        borrowed = f", also with {self.lender}'s tuned values" * bool(self.borrowers)
        fresh = f"{several(self.runs[2], 'run')} on fresh seeds{borrowed}"
        rounds = f"in all up to {sum(self.runs) * p.workload.rounds:,} rounds"
        return [f"{times} × {several(p.trials, 'trial')} = {trials}{wider}", f"then {choosing}{fresh}; {rounds}"]

    @property
    def runs(self) -> tuple[int, int, int]:
        """How many runs its trials are, how many choose among the best, and how many are on fresh seeds."""
        n, p, options = len(self.every), self.first, self.options
        trials = p.trials + max(p.trials // 2, 1) * options.widen
        choosing = usual_runs(options.choose_seeds) * bool(p.choosing) * (1 + options.widen)
        fresh = n * (1 + options.candidates) + len(self.borrowers) * len(self.searches)
        return n * trials * p.seeds, n * choosing, fresh * options.seeds

    @property
    def own(self) -> tuple[UserFile, ...]:
        """The user's files that the searches are made of."""
        return user_files.merged(*(p.own for p in self.plans.values()))

    @property
    def private(self) -> Privacy | None:
        """How the first algorithm's clients are kept private."""
        w = self.first.workload
        return Privacy.of(w.resolve({})[1]) if isinstance(w, Experiment) else None

    @property
    def pinned(self) -> dict[str, Any]:
        """The hyperparameters that --set fixes for all."""
        return _for_all(next(iter(self.plans)), self.first)

    @property
    def scenario_record(self) -> dict[str, Any]:
        """The scenario for the record; empty if there are only programs."""
        for name, p in self.plans.items():
            if isinstance(w := p.workload, Experiment):  # without the preset's values
                _, given = dataclasses.replace(w, preset="", pinned=_for_all(name, p)).resolve({})
                scenario = dataclasses.asdict(given)
                return {"scenario_name": p.options.scenario, "scenario": scenario, "preset": w.preset}
        return {}

    def to_record(self) -> dict[str, Any]:
        """The comparison's entries in compare.json."""
        p = self.first
        every = ",".join(_typed(n, q) for n, q in self.compared.items())
        algos = self.options.algos if self.options.algos == "all" else every
        fields = {n: value for q in self.plans.values() for n, value in q.options.fields.items()}
        borrow = _typed(self.lender, self.plans[self.lender]) if self.lender else "none"
        fixed = {n: value for n, value in p.options.set.items() if n in self.options.set}
        typed = dataclasses.replace(self.options, algos=algos, fields=fields, set=fixed, borrow=borrow)
        borrowing = {"lender": self.lender, "borrowers": self.borrowers} if self.lender else {}
        return {
            "options": typed.to_record(),
            "algorithms": list(self.plans),
            "pinned": self.pinned,
            "defaults_of": {plain_name(n): q.workload.configuration({}) for n, q in self.plans.items()},
            "seed": p.workload.seed,
            "rounds": max(q.workload.rounds for q in self.plans.values()),
            "trials": self.trials,
            "searches": len(self.searches),
            "control": list(self.control),
            "seeds": self.options.seeds,
            "margin": self.options.margin,
            "unlike": self.unlike,
            "left_out": dict(self.left_out),
            **borrowing,
            "top_k": self.options.candidates,
            "grace": p.grace,
            "budget": p.budget._asdict(),
            "scheduler": p.scheduler,
            "seeds_per_trial": p.seeds,
            "choose_seeds": self.options.choose_seeds,
            **p.goal.to_record(),
            **self.scenario_record,
        } | ({"own": user_copies.to_record(self.own)} if self.own else {})


def make(options: ComparisonOptions, folder: Path | None = None) -> ComparisonPlan:
    """Check everything that can be checked before anything starts; UserError otherwise.

    folder: of a comparison that is resumed; its searches that have begun are planned as they were.
    """
    _require_comparable(options)
    names = _algorithms(options)
    folder = folder or new_folder(options)
    searches = {algo: _search(options, typed, folder) for algo, typed in names.items()}
    _require_taken(options, searches)
    with terminal.silent():  # it is planned again below, and reports the error then
        first, left_out = _taking_part(searches, options)
    _require_own(options, first)
    for algo, why in left_out.items():
        say(f"note: {algo} is left out: {why}")
    searches = {algo: searches[algo] for algo in first}
    baselines = _baselines(options, names)
    for algo in [algo for algo in baselines if algo not in names]:
        search = _search(options, baselines[algo], folder)
        if p := _plan_of_baseline(search, {p.trials for n, p in first.items() if n in names}):
            searches[algo], first[algo] = search, p
    if joined := [algo for algo in searches if algo not in names]:
        say(f"note: also tuned, as baselines for the others: {', '.join(joined)} (--baselines none leaves them out)")
    plans = {}
    for algo, search in searches.items():
        if also := _also(first[algo], first.values()):
            search = dataclasses.replace(search, vary=(*options.vary, *also))
            say(f"note: {algo} also searches {', '.join(map(spaces.named, also))}, as other algorithms here do")
        plans[algo] = _planned(search)
    _require_alike(plans, options)
    plans = _with_common_grace(plans)
    with terminal.silent():  # the first ones have said what there is to say
        numbered = [
            {n: _repeated_plan(p, _search(options, _typed(n, p), folder, k)) for n, p in plans.items()}
            for k in range(1, options.searches)
        ]
        tested = tuple(b for b in baselines if b in plans)
        made = ComparisonPlan(
            options=options, folder=folder, searches=(plans, *numbered), baselines=tested, left_out=left_out
        )
        made = dataclasses.replace(made, lender=_lender(options, plans))
        made = _with_control(made) if options.control and numbered else made
    for line in made.unlike:
        say(f"note: not alike in all algorithms, by --preset {options.preset}: {line}")
    user_files.register(made.own)
    return made


def _taking_part(
    searches: Mapping[str, SearchOptions], options: ComparisonOptions
) -> tuple[dict[str, SearchPlan], dict[str, str]]:
    """The plans of those that can take part, and why the others cannot; UserError for any other fault."""
    first, left_out = dict[str, SearchPlan](), dict[str, str]()
    for algo, search in searches.items():
        try:
            if is_program(search.algo) and options.fields.get("privacy", "none") != "none":
                raise Unfit(f"--privacy is for algorithms that fedtune trains itself, but {algo} is a program")
            first[algo] = _planned(search)
        except Unfit as error:
            if options.strict or len(left_out) == len(searches) - 1:
                raise
            left_out[algo] = str(error)
    return first, left_out


def widened(c: ComparisonPlan, extended: Widened) -> ComparisonPlan:
    """The searches of a comparison, each of which goes on over wider ranges, with half its trials again.

    A search without a wider range goes on too, so that budgets stay equal.
    """
    before = c.first.trials

    def wider(name: str, p: SearchPlan) -> SearchPlan:
        of = extended.ranges[name if name in extended.ranges else c.control[0]]  # a control has its algorithm's
        given = {spaces.named(text): text for text in p.options.vary}  # in their order, on which draws depend
        vary = (given | {n: f"{n}={wider.text()}" for n, wider in of.items()}).values()
        ranges = p.space.text() | {n: wider.text() for n, wider in of.items()}  # the others as they are in a record
        more = dataclasses.replace(
            p.options,
            name=f"{p.options.name}{WIDENED}",
            vary=tuple(vary),
            trials=max(before // 2, 1),
            recorded={**p.options.recorded, "space": ranges},
        )
        return _planned(more, after=EarlierSearch(p.folder), since=p.budget.since, draws=p.draws)

    searches = tuple({name: wider(name, p) for name, p in of.items()} for of in c.searches)
    return dataclasses.replace(c, searches=searches, before=before, widened=tuple(extended.reasons))


def _require_comparable(options: ComparisonOptions) -> None:
    find(options.scenario)
    why = ""
    if options.gpus_per_trial == AUTO:
        why = "a comparison gives all one share of a GPU, but got --gpus-per-trial auto; give a number"
    elif options.widen and (options.searcher or EXTENDABLE[0]) not in EXTENDABLE:
        why = f"--widen gives searches more trials, which {options.searcher} cannot take; take {', '.join(EXTENDABLE)}"
    elif options.choose_seeds > 1 and options.candidates > 1:
        why = (
            f"with --choose-seeds {options.choose_seeds} each search names one configuration, but --top-k "
            f"{options.top_k} lets fresh seeds choose among several; give --choose-seeds 1, or no --top-k"
        )
    elif schedulers.find(options.scheduler).moves_hyperparameters:
        kept = ", ".join(n for n, kind in schedulers.KINDS.items() if not kind.moves_hyperparameters)
        why = (
            f"a comparison trains the tuned configurations again, but --scheduler {options.scheduler} changes "
            f"hyperparameters during training; take {kept}"
        )
    if why:
        raise UserError(why)


def _algorithms(options: ComparisonOptions) -> dict[str, str]:
    if not options.algos:
        raise UserError("--algos is needed, but none was given; for instance --algos gfpl,fedproto,fedavg,local")
    if options.algos == "all":
        of_scenario = {n: v for n, v in options.set.items() if n in vars(OWN)}
        scenario = dataclasses.replace(options, algo="local", set=of_scenario).experiment().scenario
        return {n: n for n in fitting(scenario) if " " not in n}
    return _named(options.algos, "--algos")


def _baselines(options: ComparisonOptions, names: dict[str, str]) -> dict[str, str]:
    alone = all(is_program(variant(one)[0]) for one in names.values()) and options.baselines == BASELINES
    if options.baselines == "none" or alone:  # built-in baselines would train on other data than programs
        return {}
    return {n: names.get(n, typed) for n, typed in _named(options.baselines, "--baselines").items()}


def _lender(options: ComparisonOptions, names: Mapping[str, object]) -> str:
    """The algorithm whose tuned values the others borrow; "" for none, UserError if it does not take part."""
    if options.borrow is None or options.borrow == "none":
        return LENDER if options.borrow is None and LENDER in names else ""
    if (lender := compared(options.borrow)) not in names:
        raise unknown("algorithm of --borrow in this comparison", lender, names)
    return lender


def _plan_of_baseline(search: SearchOptions, trials: set[int]) -> SearchPlan | None:
    """The search of an automatic baseline; None, with a line that says why, if it cannot join."""
    try:
        with terminal.silent():
            p = _planned(search)
        if p.trials not in trials:
            raise UserError(f"its grid has {several(p.trials, 'point')}, unlike the others' budget")
    except UserError as error:
        say(f"note: {search.algo} cannot be a baseline here: {error}")
        return None
    return p


def _named(text: str, flag: str) -> dict[str, str]:
    typed = user_files.split(text)
    names = {compared(one): one for one in typed}
    if len(set(map(plain_name, names))) < len(typed):
        raise UserError(f"{flag} names each algorithm once, but got {text}")
    return names


def _typed(name: str, p: SearchPlan) -> str:
    """What is typed for an algorithm of this name: a file by its path, and a variant with its values."""
    algorithm, values = variant(name)
    return p.options.algo + name.removeprefix(algorithm) * bool(values)


def _for_all(name: str, p: SearchPlan) -> dict[str, Any]:
    """The hyperparameters that --set fixes, without those of a variant."""
    return {n: value for n, value in p.workload.pinned.items() if n not in variant(name)[1]}


def _require_own(options: ComparisonOptions, plans: Mapping[str, SearchPlan]) -> None:
    """UserError if a variant has a value that all have, or that is no hyperparameter: the setting is one for all."""
    for name, p in plans.items():
        for n in variant(name)[1]:
            if n in options.set or n in options.fields:
                raise UserError(f"{name} has a value of {n} for itself, but {n} is given for all, too; leave one out")
            if n not in p.workload.pinned:
                raise UserError(f"a variant's values are hyperparameters, but {n} in {name} is the setting's, for all")


def new_folder(options: ComparisonOptions) -> Path:
    """The folder that is made; UserError if there is one already, or it cannot be made."""
    storage = Path(options.storage_path)
    alone = all(is_program(variant(one)[0]) for one in user_files.split(options.algos))
    place = "programs" if alone else plain_name(options.scenario)
    name = options.name or f"compare-{place}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    plan.require_folder(storage, name, options.name)
    return storage.absolute() / name


def _search(options: ComparisonOptions, typed: str, folder: Path, number: int = 0, called: str = "") -> SearchOptions:
    """The options of a search; a program takes of --set and --vary what names hyperparameters of its own.

    The rest, and the fields of the scenario, are for the built-in algorithms.
    """
    search = options.of_search(typed, folder, number, called)
    if not is_program(search.algo):
        return search
    own = dataclasses.replace(search, set={}, vary=()).workload().hyperparameters()
    fixed = {n: value for n, value in search.set.items() if n in own or n not in options.set}  # a variant's are its own
    return dataclasses.replace(search, set=fixed, vary=tuple(t for t in search.vary if spaces.named(t) in own))


def _require_taken(options: ComparisonOptions, searches: Mapping[str, SearchOptions]) -> None:
    """Say which names of --set and --vary a program does not have; UserError if all are programs without one."""
    given = {*options.set, *map(spaces.named, options.vary)}
    lacks = {name: given - {*s.set, *map(spaces.named, s.vary)} for name, s in searches.items()}
    if all(is_program(s.algo) for s in searches.values()) and set.intersection(*lacks.values()):
        first = next(iter(searches.values()))
        plan.make(dataclasses.replace(first, set=options.set, vary=options.vary))  # it refuses the name
    for name, missing in lacks.items():
        if missing:
            say(f"note: {name} has no {', '.join(sorted(missing))}: --set and --vary of it are for the others")


def _planned(search: SearchOptions, **more: Any) -> SearchPlan:
    run = Path(search.storage_path) / str(search.name)
    if RunFiles(run).record_file.exists():
        then = {**search.recorded, "space": RunFiles(run).record_with("space")["space"]}
        search = dataclasses.replace(search, recorded=then)
    return plan.make(search, resumed=run.exists(), **more)


def _repeated_plan(first: SearchPlan, search: SearchOptions, draws: int = 0) -> SearchPlan:
    search = dataclasses.replace(search, vary=first.options.vary, grace=first.options.grace)
    return _planned(search, since=first.budget.since, draws=draws)


def _with_control(c: ComparisonPlan) -> ComparisonPlan:
    """The comparison with its plainest algorithm a second time, under another name: on the same seeds, other draws."""
    plainest = next((n for n in PLAINEST if n in c.plans), next(iter(c.plans)))
    if c.plans[plainest].space.is_grid:
        return c  # a grid has no draws that could differ
    name = f"{plainest}{AGAIN}"

    def twice(k: int, of: dict[str, SearchPlan]) -> dict[str, SearchPlan]:
        search = _search(c.options, _typed(plainest, of[plainest]), c.folder, k, name)
        return {**of, name: _repeated_plan(of[plainest], search, OTHER_DRAWS)}

    searches = tuple(twice(k, of) for k, of in enumerate(c.searches))
    return dataclasses.replace(c, searches=searches, control=(plainest, name))


def _also(p: SearchPlan, every: Iterable[SearchPlan]) -> list[str]:
    """The scenario's hyperparameters that other algorithms search and this one does not: either all tune them or none.

    Otherwise an algorithm whose space lacks the learning rate would keep the default while others tune it.
    """
    if p.space.is_grid:
        return []
    shared = {n: d for q in every for n, d in q.space.domains.items() if n in q.workload.traits.common}
    return [spaces.varied_text(n, d) for n, d in shared.items() if n in _not_searched(p)]


def _not_searched(p: SearchPlan) -> set[str]:
    """Hyperparameters that every algorithm has, and that have an effect here."""
    return {*p.workload.traits.common} - {*p.space.domains, *p.workload.pinned} - {*p.workload.idle({})}


def _require_alike(plans: Mapping[str, SearchPlan], options: ComparisonOptions) -> None:

    def require(what: str, values: Mapping[str, object], advice: str) -> None:
        if len(set(values.values())) > 1:
            each = ", ".join(f"{n} {value}" for n, value in values.items())
            raise UserError(f"a fair comparison gives every algorithm the same {what}, but there are {each}; {advice}")

    require("number of trials", {n: p.trials for n, p in plans.items()}, "give spaces with ranges, or --trials")
    if options.budget_unit == "rounds":
        require("number of rounds", {n: p.workload.rounds for n, p in plans.items()}, "give --rounds")
    require("objective", {n: p.goal.in_words for n, p in plans.items()}, "give --objective")
    figures = {n: p.goal.first.reported(p.workload.measures.figures({})) for n, p in plans.items()}
    require("figure on fresh seeds", figures, "let the programs report one of them alike")


def _with_common_grace(plans: dict[str, SearchPlan]) -> dict[str, SearchPlan]:
    """The same plans, with a grace period until the slowest hyperparameter of any of them has had an effect."""
    grace, since = (max(of) for of in zip(*((p.grace, p.budget.since) for p in plans.values()), strict=True))
    if all(p.budget.unit == "rounds" for p in plans.values()):
        grace = schedulers.at_report(int(grace), math.lcm(*(p.workload.traits.report_every for p in plans.values())))
    with terminal.silent():  # they were planned before, and said what there is to say
        return {n: _planned(dataclasses.replace(p.options, grace=grace), since=since) for n, p in plans.items()}
