"""fedtune list, fedtune run and the console command."""

import json
import sys

import pytest

from fedtune import __main__ as console
from fedtune.commands import list as listing
from fedtune.core.errors import Unfit
from fedtune.core.hyper import hyperparameters
from fedtune.core.metrics import METRICS
from fedtune.data import datasets
from fedtune.engine.simulation import train
from fedtune.experiment import registry
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.experiment.scenarios import SCENARIOS
from fedtune.nn import catalogue
from fedtune.studies import single_run


def test_list_says_in_a_line_what_each_algorithm_does(capsys):
    assert listing.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("fedtune"))
    assert [*shown] == registry.names()
    for name in registry.names():
        text = sys.modules[registry.find(name).__module__].__doc__
        assert shown[name] == registry.summary(name) and shown[name] in text.splitlines()[0]


@pytest.mark.parametrize(
    ("topic", "names"),
    [
        ("scenarios", [*SCENARIOS, *hyperparameters(Scenario)]),
        ("data", datasets.names()),
        ("models", [*catalogue.WIDTHS, *catalogue.OPTIONS, *catalogue.FAMILIES]),
        ("metrics", METRICS),
    ],
)
def test_list_of_a_topic_shows_everything_there_is(topic, names, capsys):
    assert listing.main([topic]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in names)


@pytest.mark.parametrize("name", ["fedavg", "local", "gfpl", "cfl"])
def test_list_says_who_can_be_private_as_a_run_does(name, capsys):
    assert listing.main([name]) == 0
    said = capsys.readouterr().out
    try:
        Experiment(algorithm=name, scenario=Scenario(privacy="client", update_clip=1.0)).check({})
    except Unfit as why:
        assert "--privacy client needs a server" in said and str(why).partition("but ")[2][:20] in said
    else:
        assert "--privacy client can be given" in said


def test_list_of_one_algorithm_tells_its_pseudo_code(capsys):
    assert listing.main(["gfpl"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in hyperparameters(registry.find("gfpl")))
    assert "S_C" in out and "Alg" in out + "Algorithm" and "arXiv:2602.21873" in out and "fedprox" not in out
    assert listing.main(["gfp"]) == 2
    assert "did you mean 'gfpl'" in capsys.readouterr().err


def test_run_gives_the_rounds_of_play(tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    arguments = "run --algo fedproto --scenario digits-w4 --set lam=1.5 --lr 0.05 --clients 4 --rounds 3 --seed 2"
    assert console.main([*arguments.split(), "--output", str(rows)]) == 0
    there = [json.loads(line) for line in rows.read_text().splitlines()]
    experiment = Experiment(
        algorithm="fedproto", scenario=Scenario(clients=4, rounds=3, lr=0.05, momentum=0.9), seed=2, test_every=10
    )
    here = list(train(experiment, {"lam": 1.5}))
    clocks = {"seconds", "eval_seconds"}
    assert [{k: v for k, v in r.items() if k not in clocks} for r in there] == [
        {k: v for k, v in r.items() if k not in clocks} for r in here
    ]
    out = capsys.readouterr().out
    assert f"validation accuracy {100 * here[-1]['val_acc']:.2f} %" in out


def test_shares_are_percent_and_a_metric_of_your_own_is_as_it_is(capsys):
    last = {
        "round": 2,
        "comm_mb": 0.5,
        "sim_seconds": 12.5,
        "epsilon": 3.6404,
        "test_acc_etf": 0.875,
        "val_accuracy": 87.5,
        "test_account": 0.25,
    }
    single_run._conclude(
        last | dict.fromkeys(("val_acc", "test_acc", "test_acc_std", "test_acc_worst10"), 0.5), 1.0, 0.001
    )
    first, own, heads = capsys.readouterr().out.splitlines()
    assert first.endswith("0.50 MB sent and received, 12.5 device seconds, ε = 3.64 at δ = 0.001")
    assert own == "metrics of your own: val_accuracy 87.5000, test_account 0.2500"
    assert heads == "test accuracy by head: etf 87.50 %"


@pytest.mark.parametrize(
    ("pinned", "said"),
    [
        ({"sent_share": 0.5}, ["note: sent_share acts only with --compress topk or randk"]),
        ({"sent_bits": 2, "compress": "sign"}, ["note: sent_bits acts only with --compress qsgd"]),
        ({"clip_rate": 0.1}, ["note: clip_rate acts only with --privacy client"]),
        ({"sent_bits": 2, "compress": "qsgd"}, []),
    ],
)
def test_a_note_says_which_options_do_nothing(pinned, said):
    lines = Experiment(algorithm="fedavg", scenario=Scenario(), pinned=pinned).describe()
    assert [line for line in lines if "acts only" in line] == said


def test_a_run_that_diverges_ends_with_one_line_and_status_1(capsys):
    arguments = "run --algo fedproto --set lam=50 --set lr=1 --set momentum=0.99 --clients 4 --rounds 6"
    assert console.main(arguments.split()) == 1
    assert "stopped: diverged in round" in capsys.readouterr().err
