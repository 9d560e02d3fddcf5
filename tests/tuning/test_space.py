"""Which hyperparameters vary, over what, and from which round on they can matter."""

import importlib.util
import itertools
import pickle
import random
from dataclasses import replace

import pytest
from ray import tune

from fedtune.commands import list as list_command
from fedtune.core import hyper
from fedtune.core.errors import UserError
from fedtune.experiment import registry, scenarios
from fedtune.experiment.algorithm import first_round
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.studies import fresh_seeds
from fedtune.trainables.fedpa import FedPA
from fedtune.trainables.gfpl import GFPL
from fedtune.tuning import plan, schedulers, searchers, space, space_facts, space_types
from fedtune.tuning.options.search import SearchOptions


def experiment(algo="gfpl", **pinned):
    return Experiment(algorithm=algo, scenario=Scenario(), pinned=pinned)


def from_file(tmp_path, text, algo="gfpl", member="", **pinned):
    file = tmp_path / "mine.py"
    file.write_text("from ray import tune\n" + text)
    return space.load(f"{file}{member}", experiment(algo, **pinned))


@pytest.mark.parametrize("algo", registry.names())
@pytest.mark.parametrize("name", ["default", "paper", "wide"])
def test_every_space_loads_is_picklable_and_its_first_trial_plays(algo, name):
    e = experiment(algo)
    found = space.load(name, e)
    pickle.loads(pickle.dumps(found))  # Ray's OptunaSearch saves it with plain pickle
    for point in found.points or [space.inside(found, e.configuration({}))[0]]:
        e.resolve(point)
    assert found.names and set(found.names) <= set(e.hyperparameters())


def test_default_point_is_the_default_wherever_the_space_holds_it():
    e = experiment()
    point, outside = space.inside(space.load("default", e), e.default())
    assert not outside and point == {n: e.default()[n] for n in point}
    assert point["first"] == 10 and point["retrain_lr"] == 0.01  # what t1 and S_T, and the clients' rate, come to
    assert experiment(start=3, every=4).default()["first"] == 4 and e.configuration({})["first"] == 0
    point, outside = space.inside(space.load("wide", e), e.default())
    assert (
        outside == {"weight_decay": 0.0, "clip_norm": 0.0} and "retrain" not in point
    )  # proj alone moves nothing that the classifier reads
    code = Experiment(algorithm="fedgenp", scenario=Scenario(), preset="as_published")
    point, outside = space.inside(space.load("default", code), code.configuration({}))
    assert (point["cap"], outside["cap"]) == (1, 0) and (point["beta"], outside["beta"]) == (0.01, -1)


def test_a_hyperparameter_that_matters_late_if_ever_does_not_hold_up_the_rungs():
    e = experiment("fedpa")
    wide = space.load("wide", e)
    assert "po_floor" in wide.names and first_round(FedPA(), "po_floor") == 175
    assert space_facts.first_effect(wide, e)[0] == 3


def test_first_effect_of_gfpl_is_its_latest_first_event_anywhere_in_the_space():
    assert space_facts.first_effect(space.load("default", experiment()), experiment())[0] == 20  # t* itself
    assert space_facts.first_effect(space.load("wide", experiment()), experiment())[0] == 60  # t* = 40, S_T = 20, stale
    pinned = experiment(order="fresh")
    assert space_facts.first_effect(space.load("wide", pinned), pinned)[0] == 40
    pinned = experiment(first=3, every=3)
    assert space_facts.first_effect(space.load("default", pinned), pinned)[0] == 3
    by_t1 = max(GFPL(start=t1, every=st).first_event() for t1, st in itertools.product(range(1, 15), range(1, 11)))
    paper = space.tunable(GFPL, start=(1, 14), every=(1, 10))
    assert space_facts.first_effect(space.Space(paper, []), experiment())[0] == by_t1 == 20
    every = space.tunable(GFPL, "start", "every")
    assert space_facts.first_effect(space.Space(every, []), experiment())[0] == 57  # spec 6.1


@pytest.mark.parametrize(("algo", "round"), [("fedproto", 2), ("local", 1), ("fedprox", 1)])
def test_first_effect_of_other_algorithms(algo, round):
    assert space_facts.first_effect(space.load("default", experiment(algo)), experiment(algo))[0] == round


def test_tunable_takes_declared_ranges_or_narrower_ones():
    found = space.tunable(GFPL, "lam", "lr", start=(1, 14))
    assert (found["lam"].lower, found["lam"].upper) == (0.05, 100.0)
    assert (found["start"].lower, found["start"].upper) == (1, 15)
    for wrong, message in ((("lamb",), "did you mean 'lam'"), (("optimiser",), "did you mean 'optimizer'")):
        with pytest.raises(UserError, match=message):
            space.tunable(GFPL, *wrong)
    with pytest.raises(UserError, match="start must be a whole number in 1..40, but got 99"):
        space.tunable(GFPL, start=(1, 99))


def test_lines_vary_one_at_a_time():
    assert space.lines(a=[1, 2], b=[3]) == [{"a": 1}, {"a": 2}, {"b": 3}]


def test_a_file_of_the_users_works_and_members_can_be_named(tmp_path):
    text = "SPACE = {'lam': tune.uniform(1, 2), 'components': 3}\nother = [{'lam': 1.0}, {'lam': 1.0}, {'lam': 2.0}]"
    found = from_file(tmp_path, text)
    assert set(found.domains) == {"lam", "components"} and found.domains["components"].categories == [3]
    assert from_file(tmp_path, text, member=":other").points == [{"lam": 1.0}, {"lam": 2.0}]


def test_a_dict_of_grid_searches_is_all_its_combinations(tmp_path):
    text = "SPACE = {'lam': tune.grid_search([1, 2]), 'every': tune.grid_search([3, 4]), 'start': 5}"
    found = from_file(tmp_path, text)
    assert found.is_grid and len(found.points) == 4 and all(p["start"] == 5 for p in found.points)


def test_pinned_hyperparameters_leave_the_space():
    assert "lam" not in space.load("default", experiment(lam=1.0)).names
    with pytest.raises(UserError, match="something to vary.*fixed are mu, lr, momentum, local_epochs"):
        space.load("default", e := experiment("fedprox", mu=0.1, lr=0.1, momentum=0.0, local_epochs=1))
    more = ["participation=0.5..1 log"]
    assert set(space.varied(space.load("default", e, with_more=True), more, e).names) == {"participation"}


ENTRIES = [
    (
        "'batch': tune.uniform(4, 8)",
        "batch takes whole numbers, but its range 4.0..8.0 has others",
    ),
    ("'batch': tune.qrandint(4, 64, 4)", "uniform or log-uniform, but got Integer Quantized; or list the values"),
    ("'batch': tune.randint(4.5, 9)", "batch needs a range of whole numbers, but an end of it is 4.5"),
    ("'batch': tune.randint('4', '9')", "batch needs a range of whole numbers, but .* is '4'"),
    ("'batch': tune.randint(1, float('inf'))", "batch needs a range of whole numbers, but .* is inf"),
    ("'batch': tune.choice([4, 8, 4])", "batch needs different values, but its choice has 4 several times"),
    ("'batch': tune.choice(['8', 8])", "batch needs different values, but its choice has 8 several times"),
    ("'batch': tune.choice([(4, 8)])", r"batch must be a whole number .* but got \(4, 8\)"),
    ("'batch': tune.choice([4, None])", "batch must be a whole number .* but got None"),
    ("'batch': tune.choice([4, True])", "batch must be a whole number .* but got True"),
    ("'lr': tune.choice([0.1, float('nan')])", "lr must be a number .* but got nan"),
    ("'batch': np.array([4, 8])", r"batch must be a whole number .* but got array\(\[4, 8\]\)"),
    ("'weight_decay': tune.uniform(0, 0.1)", "weight_decay takes .* but its range 0..0.1 has others; use a"),
    ("'local_steps': tune.randint(-1, 5)", "local_steps must be a whole number .* but got -1"),
    ("'optimizer': tune.uniform(0, 1)", "optimizer .*sgd | adam"),
    ("'lr': tune.sample_from(lambda _: 0.1)", "lr must be a range or a choice of Ray Tune's"),
    ("'lr': lambda: 0.1", "lr must be a number in"),
    ("'lr': {'a': tune.uniform(0, 1)}", "lr must be a number in"),
]  # of a space, and why each is refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SPACE = {'lamm': tune.uniform(1, 2)}", "did you mean 'lam'"),
        ("SPACE = {'lam': tune.uniform(1, 200)}", "lam must be a number in .*got 200"),
        ("SPACE = {'linkage': tune.choice(['ball', 'bal'])}", "linkage must be one of .*got 'bal'"),
        ("SPACE = {'lam': tune.uniform(2, 1)}", "lam needs low <= high"),
        ("SPACE = {}", "something to vary"),
        ("SPACE = [{'lam': 'x'}]", "lam must be a number"),
        ("SPACE = {'lam': tune.randn()}", "lam must be a range or a choice .* but got Float Normal"),
        ("default = 3", "unknown search space"),
        *((f"import numpy as np\nSPACE = {{{entry}}}", message) for entry, message in ENTRIES),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused_in_one_line(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        from_file(tmp_path, text)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ("'batch': tune.choice(np.array([4, 8]))", "4 | 8"),
        ("'batch': tune.choice(list(2 ** np.arange(2, 6)))", "4 | 8 | 16 | 32"),
        ("'batch': tune.choice(['4', 8.0])", "4 | 8"),
        ("'optimizer': tune.choice(np.array(['sgd', 'adam']))", "sgd | adam"),
        ("'batch': tune.grid_search(np.array([4, 8]))", "4 | 8"),
        ("'batch': tune.grid_search(range(4, 7))", "4 | 5 | 6"),
        ("'batch': np.int64(8)", "8"),
        ("'batch': tune.randint(np.int64(4), np.int64(9))", "4..8"),
        ("'lr': tune.uniform(np.float32(0.25), np.float32(0.5))", "0.25..0.5"),
        ("'local_steps': tune.randint(0, 5)", "0..4"),
    ],
)
def test_a_space_gives_what_its_hyperparameters_declare(tmp_path, entry, text):
    e = experiment("fedavg")
    found = from_file(tmp_path, f"import numpy as np\nSPACE = {{{entry}}}", "fedavg")
    assert list(found.text().values()) == [text]
    default = space.inside(found, e.default())[0] if not found.is_grid else found.points[0]
    for kind in ("random", "tpe", "cmaes", "gp", "nsga2", "grid", "pbt"):
        for config in suggested(kind, found, default):
            for name, value in config.items():
                declared = e.hyperparameters()[name].check(value)
                assert declared == value and type(declared) is type(value), f"{kind} gives {value!r}"


def suggested(kind, found, first):
    """What a searcher gives over a space, or population based training makes of it."""
    if found.is_grid or kind == "grid":
        finite = {n: d for n, d in found.domains.items() if space_types.size(d)}
        return found.points or [{n: v} for n, d in finite.items() for v in space_types.values(d)]
    if kind == "pbt":
        rng = random.Random(0)
        config = dict(first)
        moved = []
        for _ in range(40):
            copies = {
                n: rng.choice(d.categories) if hasattr(d, "categories") else config[n] * rng.choice([0.8, 1.2])
                for n, d in found.domains.items()
            }
            moved.append(config := schedulers.clamped(found, copies))
        return moved
    searcher, got = searchers.searcher(kind, found, [first], [], seed=1, study="s"), []
    for i in range(12):
        got.append(searcher.suggest(str(i)))
        searcher.on_trial_complete(str(i), {"val_acc": 0.1 * (i % 7), "training_iteration": 1, "complete": True})
    return got


def test_a_condition_is_compared_with_the_value_that_is_declared(tmp_path):
    text = """import numpy as np
from fedtune.tuning.space import when
SPACE = {'batch': tune.choice([4, 8]), 'lr': when(tune.uniform(0.1, 0.5), batch='8'),
         'momentum': when(tune.uniform(0.1, 0.5), batch=np.array([4, 8]))}"""
    assert from_file(tmp_path, text, "fedavg").conditions == {"lr": {"batch": (8,)}, "momentum": {"batch": (4, 8)}}


def test_none_is_chosen_only_where_it_is_the_default():
    """A trial's table could not tell it from the value of a trial that did not have the hyperparameter."""
    named = lambda default: replace(hyper.hyper(default, choices=("a", None)).metadata["hp"], name="kind")  # noqa: E731
    assert space_types.fitted(named(None), tune.choice(["a", None])).categories == ["a", None]
    with pytest.raises(UserError, match="kind .* but its choice has None"):
        space_types.fitted(named("a"), tune.choice(["a", None]))


def test_domains_in_words():
    assert space_types.domain_text(tune.loguniform(0.1, 10)) == "0.1..10 log"
    assert space_types.domain_text(tune.randint(1, 5)) == "1..4"
    assert space_types.domain_text(tune.choice(["a", True])) == "a | True"


@pytest.fixture
def without_files(monkeypatch):
    """No algorithm has a file in search_spaces/."""
    found = importlib.util.find_spec
    hidden = lambda name, *rest: None if name.startswith("fedtune.search_spaces.") else found(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", hidden)


@pytest.mark.usefixtures("without_files")
@pytest.mark.parametrize("algo", registry.names())
def test_an_algorithm_without_a_file_has_a_default_space_of_what_it_declares(algo):
    assert space.names(algo) == ["default"]
    found, cls = space.load("default", experiment(algo)), registry.find(algo)
    late = {n for n, hp in hyper.hyperparameters(cls).items() if hp.late}
    assert "lr" in found.names and not late & set(found.names) and not set(cls.structural) & set(found.names)
    own = [n for n in found.names if n not in ("lr", "momentum", "local_epochs")]
    assert all(hyper.hyperparameters(cls)[n].low is not None for n in own)
    alike = {"lr": "0.001..0.3 log", "momentum": "0..0.95", "local_epochs": "1..10 log"}
    assert {n: t for n, t in found.text().items() if n not in own} == alike
    with pytest.raises(UserError, match="unknown search space .* 'paper'"):
        space.load("paper", experiment(algo))


@pytest.mark.usefixtures("without_files")
def test_the_derived_space_of_gfpl_is_listed(capsys):
    assert list_command.main(["gfpl"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "space default: lam 0.05..100 log, components 1..16," in out and "lr 0.001..0.3 log" in out
    assert "linkage ball" not in out.partition("space default")[2], "choices are left to a file"


# ---- what has no effect anywhere in a space leaves it, with a line; what may have one stays


def loaded(name="default", algo="gfpl", scenario=None, **pinned):
    e = Experiment(algorithm=algo, scenario=scenario or scenarios.find("digits-w4"), pinned=pinned)
    return space.load(name, e), e


def test_with_few_rows_a_class_the_number_of_components_leaves(capsys):
    whole, e = loaded()
    found = space_facts.without_idle(whole, e)
    assert set(whole.names) - set(found.names) == {"components"}
    assert (
        "note: components has no effect here and is not searched: a class has at most 9 rows" in capsys.readouterr().err
    )
    many, e = loaded(scenario=scenarios.find("gfpl-fmnist-w4"))
    assert space_facts.without_idle(many, e) == many


def test_what_another_hyperparameter_of_the_space_decides_stays():
    """Momentum is idle under Adam, but not where the space has both optimisers."""
    adam = Scenario(optimizer="adam")
    alone, e = loaded("default", "fedavg", adam)
    assert "momentum" not in space_facts.without_idle(alone, e).names and "momentum" in alone.names
    both = space.varied(alone, ["optimizer"], e)
    assert "momentum" in space_facts.without_idle(both, e).names


def test_pinned_ablations_take_what_is_theirs_along():
    whole, e = loaded("wide", scenario=scenarios.find("gfpl-fmnist-w4"), pfg=False)
    left = set(space_facts.without_idle(whole, e).names)
    assert (
        not left & {"components", "threshold", "pseudo", "first", "every", "retrain_epochs", "order"} and "lam" in left
    )
    whole, e = loaded("default", scenario=scenarios.find("gfpl-fmnist-w4"), dcs=False)
    assert "lam" not in space_facts.without_idle(whole, e).names
    whole, e = loaded("default", scenario=scenarios.find("gfpl-fmnist-w4"), order="interleaved")
    assert not {"pseudo", "retrain_epochs"} & set(space_facts.without_idle(whole, e).names)


def test_a_condition_on_what_left_is_settled_by_its_default():
    whole, e = loaded(scenario=scenarios.find("gfpl-fmnist-w4"), dcs=False)
    domains = {"lam": whole.domains["lam"], "lr": whole.domains["lr"], "every": whole.domains["every"]}
    conditions = {"lr": {"lam": (2.0,)}, "every": {"lam": (5.0,)}}
    found = space_facts.without_idle(space.Space(domains, [], conditions), e)
    assert found.names == ["lr"] and found.conditions == {}  # lam is 2 where it is not searched


def test_a_grid_keeps_its_points_with_a_warning_and_a_record_what_was_searched(capsys):
    grid, e = loaded("paper")
    assert (
        space_facts.without_idle(grid, e) == grid
        and "warning: components has no effect here" in capsys.readouterr().err
    )
    whole, e = loaded()
    assert space_facts.without_idle(whole, e, {"components": "1..16"}) == whole
    options = SearchOptions(algo="gfpl", scenario="digits-w4", name="x")
    record = {"options": options.to_record(), "scenario": vars(scenarios.find("digits-w4"))}
    then = plan.make(SearchOptions.from_record(record | {"space": whole.text()}))
    assert "components" in then.space.names and "components" not in plan.make(options).space.names


def test_a_space_in_which_nothing_has_an_effect_is_refused():
    whole, e = loaded()
    with pytest.raises(UserError, match="something to vary, but no searched hyperparameter has an effect: a class has"):
        space_facts.without_idle(space.Space({"components": whole.domains["components"]}, []), e)


def test_a_search_that_goes_on_keeps_its_ranges(capsys) -> None:
    experiment = Experiment(algorithm="fedavg", scenario=Scenario(rounds=200))
    now = space.load("default", experiment)
    then = {"lr": "0.001..0.3 log", "momentum": "0..0.9", "local_epochs": "1..5 where optimizer is sgd"}
    found = space.as_recorded(now, then, experiment)
    assert found.text() == now.text() | {"momentum": "0..0.9", "local_epochs": "1..5"}
    assert capsys.readouterr().err == ""  # they are not what somebody asks for now
    assert found.domains["lr"] is now.domains["lr"]
    assert space.as_recorded(now, {}, experiment) == now


def test_the_default_of_a_space_of_codecs_is_the_trial_that_tries_it(tmp_path):
    options = SearchOptions(
        algo="fedavg", scenario="digits-w4", storage_path=str(tmp_path), vary=("compress", "sent_share")
    )
    p = plan.make(options)
    (first,) = p.points  # which has no share, as compress none sends all
    assert p.default() == first == fresh_seeds.values(p, {f"config/{n}": v for n, v in first.items()})
    assert p.default({"compress": "topk"}) == first | {"compress": "topk", "sent_share": 0.1}
