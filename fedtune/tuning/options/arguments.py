"""What the commands share: arguments made from options."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedtune.core.errors import UserError
from fedtune.runs import reading
from fedtune.tuning.options import types as options
from fedtune.tuning.options.options import ExperimentOptions
from fedtune.tuning.options.search import SearchOptions
from fedtune.user_code.command import Parser as Parser
from fedtune.user_code.command import guarded as guarded

FIRST = ("algo", "algos", "baselines")  # options that --help shows before the others
OF_MACHINE = ("data_dir", "address", "max_concurrent", "dashboard", "debug")  # options that a resumed run may change


def add_options(parser: Parser, cls: type, *only: str, **helps: str) -> None:
    """An argument for each of a class's options, under their headings, or for those named only, under none.

    helps: other words for some of them.
    """
    every = not only
    declared = {action.dest for action in parser._actions}  # the command has declared these itself
    for f in sorted(options.options(cls), key=lambda f: f.name not in FIRST):
        if f.name in declared or (only and f.name not in only):
            continue
        about = f.metadata
        text = helps.get(f.name) or (about["help"]() if callable(about["help"]) else about["help"])
        given: dict[str, Any] = {"dest": f.name, "help": text.replace("%", "%%"), "default": argparse.SUPPRESS}
        if isinstance(f.default, bool):
            given["action"] = "store_false" if f.default else "store_true"
        elif f.name == "set" or isinstance(f.default, tuple):
            given |= {"action": "append", "metavar": about["metavar"]}
        else:
            given |= {"metavar": about["metavar"], "choices": about["choices"] or None}
            given |= {"type": typed(about["parse"])} if about["parse"] else {}
        group = heading(parser, about["group"]) if every and about["group"] else parser
        argument = group.add_argument(options.flag(f.name, f.default), **given)
        if every and (about["rare"] or f.name == "algo"):  # WHAT is its other spelling
            parser.leave_out(argument)
    if every and issubclass(cls, ExperimentOptions):
        add_fields(parser)


def add_what(parser: Parser) -> None:
    """The argument WHAT, which --algo gives too."""
    (f,) = (f for f in options.options(ExperimentOptions) if f.name == "algo")
    text = f.metadata["help"]().partition("; there are")[0]
    parser.add_argument("what", nargs="?", metavar="WHAT", default=argparse.SUPPRESS, help=text)


def heading(parser: Parser, title: str) -> Any:
    """The group of arguments that stand under a heading; headings come in one order, WHAT, HOW, LENGTH, WHERE."""
    groups = {str(g.title): g for g in parser._action_groups}
    for name in options.HEADINGS if title not in groups else ():
        groups[name] = parser.add_argument_group(name)
    return groups[title]


def add_resumed(parser: Parser) -> None:
    """Arguments for continuing a run: its options that may change."""
    add_options(
        parser,
        SearchOptions,
        *OF_MACHINE,
        data_dir="folder with the data sets, if it has moved since the search",
        address="address of a Ray cluster (default: as in the search)",
        max_concurrent="trials that run at once (default: as in the search)",
    )
    parser.add_argument(
        "--trust", action="store_true", help="accept a run that another user wrote; its files can run any code"
    )


def add_fields(parser: Parser, *only: str) -> None:
    """An argument for each field of a scenario that is often needed, or for those named; --set gives the others."""
    from fedtune.experiment import scenario, scenarios

    declared = vars(scenarios.SCENARIOS[scenarios.DEFAULT])
    for name, value in ((n, v) for n, v in declared.items() if not only or n in only):
        summary, _, detail = scenario.about(name).partition("; ")
        own = scenarios.on_own_data(name)
        on_own = f"on your own data: {own}" if own else ""
        words = "; ".join(filter(None, [f"{summary} (default {value})", detail, on_own])).replace("%", "%%")
        kind = {int: "N", float: "X"}.get(type(value), "NAME")
        if name not in scenario.FLAGS:
            parser.settable.append(argparse.Action([], name, metavar=f"{name}={kind}", help=words))
            continue
        made = heading(parser, options.LENGTH if name == "rounds" else options.WHAT).add_argument(
            options.flag(name), dest=f"field_{name}", metavar=kind, default=argparse.SUPPRESS, help=words
        )
        if name not in (*scenario.OFTEN, *only):
            parser.leave_out(made)


def given(args: argparse.Namespace, cls: type, *only: str) -> dict[str, Any]:
    """The options of a class, or those of them that are named, which were given on the command line.

    UserError for more CPUs than there are, before anything that takes seconds to load.
    """
    values = {n: v for n, v in vars(args).items() if not only or n in only}
    if "what" in values and "algo" in values:
        raise UserError(f"WHAT or --algo says what is trained, but got {values['what']} and {values['algo']}")
    values |= {"algo": values["what"]} if values.get("what") else {}
    values_given = {f.name: values[f.name] for f in options.options(cls) if f.name in values}
    if "set" in values_given:
        values_given["set"] = dict(options.pair(text) for text in values_given["set"])
    if "cpus_per_trial" in values_given:
        from fedtune.cluster import ray_start

        ray_start.require_cpus(values_given["cpus_per_trial"], values_given.get("address"))
    fields = {n.removeprefix("field_"): v for n, v in values.items() if n.startswith("field_")}
    return values_given | ({"fields": fields} if fields else {})


def read_config(path: str) -> dict[str, Any]:
    """The content of a best.yaml; UserError if it is none."""
    try:
        content = reading.best(Path(path))
    except (OSError, ValueError) as error:
        why = reading.short(error)
        raise UserError(f"--config needs a best.yaml of a search, but {path} cannot be read: {why}") from error
    if "program" in content:
        raise UserError(f"--config takes no program, as fedtune run trains none; its command is {content['command']}")
    if not {"algorithm", "scenario", "hyperparameters"} <= content.keys():
        raise UserError(f"--config needs algorithm, scenario, hyperparameters as in a best.yaml, but {path} lacks some")
    return content


def typed(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """An option's parser as argparse needs it: a violated rule becomes argparse's own error."""

    def value(text: str) -> Any:
        try:
            return parse(text)
        except UserError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return value


small_int, positive_int = typed(options.small_int), typed(options.positive_int)
above_zero = typed(options.above_zero)
