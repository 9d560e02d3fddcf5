"""The options of a comparison, each with its default and its help, declared once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fedtune.core.errors import UserError, shown
from fedtune.programs.naming import is_command, is_program
from fedtune.runs import reading
from fedtune.runs.choice import TOP
from fedtune.runs.files import search_name
from fedtune.tuning.options.options import OF_ENGINE, canonical
from fedtune.tuning.options.search import SearchOptions
from fedtune.tuning.options.types import HOW, LENGTH, LONG, WHAT, above_zero, number, option, pair, small_int
from fedtune.user_code import user_files

BASELINES = "local,fedavgft"
LENDER = "fedavg"
TOP_K = 3
CHOSEN_BY = 3  # seeds by which a search of a comparison chooses; a single search has another default


AT = ("epsilon", "comm_mb", "sim_seconds")  # what a comparison may be made at several levels of


def variant(typed: str) -> tuple[str, dict[str, str]]:
    """An algorithm, and the values that it is compared with: `fedavg[compress=topk,sent_share=0.01]`."""
    algorithm, bracket, values = typed.removesuffix("]").partition("[")
    if not (bracket and typed.endswith("]")) or is_command(typed):
        return typed, {}
    return algorithm, dict(pair(text, f"{algorithm}[…]") for text in user_files.split(values))


def compared(typed: str) -> str:
    """The name by which what was typed is compared: the algorithm's own, and a variant's values."""
    algorithm, _ = variant(typed)
    return canonical(algorithm) + typed.removeprefix(algorithm)


def levels(text: Any) -> str:
    """NAME=A,B,… with levels that rise, each once; UserError for anything else but nothing."""
    if text == "":
        return text
    name, _, values = str(text).partition("=")
    if name not in AT or not values:
        raise UserError(f"must be NAME=A,B,… with a NAME of {', '.join(AT)}, but got {shown(text)}")
    most = math.inf if name == "epsilon" else LONG
    parse = number(float, 1e-9, most, "levels above 0")
    return f"{name}={','.join(f'{level:.12g}' for level in sorted({*map(parse, values.split(','))}))}"


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(SearchOptions):
    """A comparison: the options that all its searches share, and how their findings are tested."""

    algo: str = ""  # set for each search
    final_seeds: int = 0  # fresh seeds come after all searches
    algos: str = option(
        "",
        "algorithms to compare, names or files; or variants of them, 'fedavg[compress=topk]'; all: those that can "
        "train the scenario's models",
        "A,B,…",
        group=WHAT,
    )
    baselines: str = option(
        BASELINES, f"baselines, also tuned (default {BASELINES}); none: no baselines", "A,B|none", group=WHAT
    )
    searches: int = option(
        3,
        "searches of each algorithm (default 3); each on seeds of its own; one gives no verdict",
        "K",
        small_int,
        group=LENGTH,
    )
    seeds: int = option(
        3, "fresh seeds of each search (default 3); each has its own partition", "N", small_int, group=LENGTH
    )
    choose_seeds: int = option(
        CHOSEN_BY,
        f"seeds that decide between the best {TOP} (default {CHOSEN_BY}); these finished trials are trained on K - 1 "
        "more at a search's end; 1: fresh seeds decide",
        "K",
        small_int,
        group=HOW,
    )
    borrow: str | None = option(
        None,
        f"whose tuned values all are also trained with (default {LENDER}, if compared); those of the hyperparameters "
        "that both have, with defaults otherwise; none: nobody's",
        "NAME|none",
        group=HOW,
        rare=True,
    )
    at: str = option(
        "",
        "compare at each level of a budget; of epsilon, comm_mb or sim_seconds: all is searched and compared at each, "
        "on the same seeds, and one figure shows it; epsilon=inf: without privacy",
        "NAME=A,B,…",
        levels,
        group=HOW,
        rare=True,
    )
    strict: bool = option(False, "end if an algorithm cannot take part; else it is left out", group=HOW, rare=True)
    margin: float = option(
        0.005,
        "difference that matters (default 0.005); in the metric's unit: half a point",
        "N",
        above_zero,
        group=HOW,
        rare=True,
    )
    control: bool = option(
        True,
        "leave out the control, FedAvg under a second name; without FedAvg: the plainest algorithm",
        group=HOW,
        rare=True,
    )
    widen: bool = option(
        False,
        "extend ranges if the best value is at an end; for all that share them, and every search gets half as many "
        "trials again",
        group=HOW,
    )
    top_k: int | None = option(
        None,
        f"best trials that fresh seeds judge (default 1); with --choose-seeds 1 they choose among these (default "
        f"{TOP_K})",
        "N",
        small_int,
        group=HOW,
        rare=True,
    )

    @property
    def candidates(self) -> int:
        """How many of a search's best are trained on fresh seeds: what it names, if it chooses by more seeds."""
        return self.top_k or (TOP_K if self.choose_seeds == 1 else 1)

    def of_search(self, typed: str, folder: Path, number: int = 0, called: str = "") -> SearchOptions:
        """The options of one of an algorithm's searches, whose run lies in the comparison's folder.

        Each has a block of seeds: those of its trials, those that decide between its best, its fresh ones.
        called: by another name.
        """
        shared = {f.name: getattr(self, f.name) for f in dataclasses.fields(SearchOptions)}
        algorithm, values = variant(typed)
        shared["set"] = {**self.set, **values}
        shared["vary"] = tuple(text for text in self.vary if text.partition("=")[0] not in values)
        if is_program(algorithm):  # the scenario's options are for built-in algorithms
            shared = {name: value for name, value in shared.items() if name not in OF_ENGINE}
            shared["fields"] = {name: value for name, value in self.fields.items() if name == "rounds"}
        name = user_files.plain_name(compared(typed))
        then = self.recorded and {**self.recorded, "defaults": self.recorded["defaults_of"][name]}
        return SearchOptions(
            **shared
            | {
                "algo": algorithm,
                "name": search_name(user_files.plain_name(called) if called else name, number),
                "storage_path": str(folder),
                "seed": self.seed + number * (self.seeds_per_trial + self.choose_seeds - 1 + self.seeds),
                "recorded": then,
            }
        )

    @classmethod
    def from_record(cls, content: Mapping[str, Any]) -> Self:
        """The options in a compare.json, with its algorithms by name where `all` was asked for."""
        options, algorithms = super().from_record(content), reading.compared_in(content)
        then = {**options.recorded, "defaults_of": content["defaults_of"]}
        borrow = content["options"].get("borrow", "none")  # a comparison from before borrowed nothing
        options = dataclasses.replace(options, recorded=then, borrow=borrow)
        return options if options.algos != "all" else dataclasses.replace(options, algos=",".join(algorithms))
