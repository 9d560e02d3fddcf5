"""Options are declared once: the command line, a run's record and Python give the same ones."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from fedtune.commands.search import parser
from fedtune.core.errors import UserError
from fedtune.experiment.scenario import FLAGS, Scenario
from fedtune.tuning import programs
from fedtune.tuning import space as spaces
from fedtune.tuning.options import arguments
from fedtune.tuning.options import types as options
from fedtune.tuning.options.options import ExperimentOptions
from fedtune.tuning.options.search import SearchOptions
from fedtune.user_code import command_help

LINE = (
    "--algo gfpl --scenario digits-dir0.1 --rounds 7 --lr 0.05 --set lam=2 --set order=fresh --seed 3 --download "
    "--vary momentum --vary batch=2..8 --trials 5 --scheduler none --objective val_acc,comm_mb --seeds-per-trial 2 "
    "--budget-unit mb --budget 2.5 --grace 1 --final-seeds 0 --time-budget 90 --max-concurrent 1 --cpus-per-trial 0.5 "
    "--gpus-per-trial auto --name n --storage-path s --no-dashboard --logger tensorboard"
)
MADE = SearchOptions(
    algo="gfpl",
    scenario="digits-dir0.1",
    fields={"rounds": "7", "lr": "0.05"},
    set={"lam": "2", "order": "fresh"},
    seed=3,
    download=True,
    vary=("momentum", "batch=2..8"),
    trials=5,
    scheduler="none",
    objective="val_acc,comm_mb",
    seeds_per_trial=2,
    budget_unit="mb",
    budget=2.5,
    grace=1,
    final_seeds=0,
    time_budget=90,
    max_concurrent=1,
    cpus_per_trial=0.5,
    gpus_per_trial="auto",
    name="n",
    storage_path="s",
    dashboard=False,
    logger=("tensorboard",),
)


def parsed(line: str) -> SearchOptions:
    return SearchOptions(**arguments.given(parser().parse_args(line.split()), SearchOptions))


def test_command_line_equals_python() -> None:
    assert parsed(LINE) == MADE
    assert parsed("") == SearchOptions()


def test_record_gives_the_options_back() -> None:
    for made in (MADE, SearchOptions()):
        record = json.loads(json.dumps({"options": made.to_record()}))
        assert SearchOptions.from_record(record) == made


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({}, "does not say how the search was started"),
        ({"options": ["--algo", "gfpl"]}, "options must be names and values"),
        ({"options": {"algo": "gfpl", "colour": 1}}, "options that this fedtune does not know: colour"),
    ],
)
def test_a_record_without_fit_options_is_refused(record: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        SearchOptions.from_record(record)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"trials": 2.5}, "--trials must be a whole number in 1..1000000, but got 2.5"),
        ({"trials": True}, "--trials must be a whole number in 1..1000000, but got True"),
        ({"seed": "x"}, "--seed must be a whole number"),
        ({"budget": 0}, "--budget must be a number above 0, at most 1,000,000,000, but got 0"),
        ({"gpus_per_trial": 1.5}, "a fraction below 1 or a whole number of at most 1,000, or auto, but got 1.5"),
        ({"executor": "stak"}, "--executor unknown choice 'stak': did you mean 'stack'"),
        ({"budget_unit": "bytes"}, "--budget-unit unknown choice 'bytes'"),
    ],
)
def test_an_option_that_breaks_its_rule_is_refused_from_python(given: dict, message: str) -> None:
    with pytest.raises(UserError) as caught:
        SearchOptions(algo="gfpl", **given)
    assert message in str(caught.value)


def test_every_option_has_help_and_stands_in_the_parser() -> None:
    text = command_help.page(parser(), whole=True)
    for f in options.options(SearchOptions):
        assert f.metadata["help"], f.name
        assert options.flag(f.name, f.default) in text
    for f in dataclasses.fields(Scenario):
        assert (options.flag(f.name) if f.name in FLAGS else f"  {f.name}=") in text


def test_no_option_has_the_name_of_a_scenario_field() -> None:
    assert not {f.name for f in dataclasses.fields(SearchOptions)} & {f.name for f in dataclasses.fields(Scenario)}


def test_fields_and_pinned_values_get_their_types() -> None:
    made = ExperimentOptions(algo="gfpl", fields={"rounds": "7", "lr": "0.05"}, set={"lam": "2", "components": "3"})
    experiment = made.experiment()
    typed = made.with_typed(experiment)
    assert typed.fields == {"rounds": 7, "lr": 0.05} and typed.set == {"lam": 2.0, "components": 3}
    assert typed.experiment() == experiment


def test_set_takes_fields_of_the_scenario_that_have_no_option() -> None:
    made = ExperimentOptions(algo="gfpl", set={"swaps": "2", "lam": "2"}, fields={"clients": 4})
    experiment = made.experiment()
    assert experiment.scenario.swaps == 2 and experiment.pinned == {"lam": 2.0}
    typed = made.with_typed(experiment)
    assert typed.fields == {"clients": 4, "swaps": 2} and typed.set == {"lam": 2.0} and typed.experiment() == experiment
    with pytest.raises(UserError, match="swaps is given once"):
        ExperimentOptions(algo="gfpl", set={"swaps": 2}, fields={"swaps": 1}).experiment()


def test_a_parser_is_built_without_torch_and_ray() -> None:
    code = (
        "import sys; from fedtune.commands import search, resume, replay, run, status\n"
        "for command in (search, resume, replay, run): command.parser().format_help()\n"
        "assert not {'torch', 'ray', 'optuna'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_choices_may_be_written_with_blanks_as_they_are_shown() -> None:
    assert programs._space(("opt=a | b", "lr=0.1..1")) == {"opt": ["a", "b"], "lr": "0.1..1"}
    experiment = SearchOptions(algo="fedavg").experiment()
    space = spaces.varied(spaces.load("default", experiment), ("optimizer=sgd | adam",), experiment)
    assert space.domains["optimizer"].categories == ["sgd", "adam"]
