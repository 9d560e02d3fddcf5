"""Each check fails for the user file that violates it, and for no other (`fedtune check`)."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import fedtune.commands.check
from fedtune.conformance import models
from fedtune.conformance.algorithms import CHECKS
from fedtune.conformance.check import CheckResult, judge
from fedtune.core.process import one_thread
from fedtune.studies.checking import Check

HERE = Path(__file__).parents[1] / "support"
ALGORITHMS, MODELS = HERE / "broken_algorithms.py", HERE / "broken_models.py"

BROKEN = {
    "Mistyped": ("declarations", "did you mean aggregate?"),
    "LogFromZero": ("declarations", "log scale"),
    "WrongPreset": ("declarations", "lam must be a number in 0.01..1"),
    "Stops": ("runs", "KeyError: 'control'"),
    "Infinite": ("finite", "became NaN or infinite"),
    "SinglePrecision": ("types", "new_zeros"),
    "Overwrites": ("inputs", "`upload` changes m.head.bias"),
    "ScalesRows": ("inputs", "`loss` changes x"),
    "GlobalNoise": ("draws", "the process's random stream of numpy"),
    "Collects": ("own state", "gets another value when the same round runs again"),
    "Counts": ("own state", "self.calls is set during a run"),
    "KeepsInNet": ("own state", "gets another value when the same round runs again"),
    "Unseeded": ("own state", "depends on what no checkpoint saves, or on no seed"),
    "CountsRuns": ("seed", "the same seed gives different numbers the second time"),
    "CentresScores": ("scores", "scores a row differently when the batch has other rows"),
    "Branches": ("one program", "torch.where"),
    "Selects": ("one program", "mask"),
    "ForgetsMask": ("stack = loop", "data.mask"),
    "ByPlace": ("grouping", "index the server's entries by `ids`"),
    "OwnTuple": ("checkpoint", "does not load without running code"),
    "Undeclared": ("messages", "sends round, which is not declared"),
    "NoClientAxis": ("runs", "must return a first axis of the 5 clients, but means is a tensor of float32 [6, 3]"),
    "CookedLedger": ("runs", "comm_mb is a metric of fedtune's"),
    "SendsRows": ("rows stay home", "the client's own rows in example"),
    "TakesMedian": ("one mean", "if each model is replaced by their mean, the server's shared/"),
    "CountsClients": ("one mean", "if each upload comes twice, the server's shared/"),
    "Idle": ("first effects", "lam changes nothing"),
    "TooEarly": ("first effects", "has an effect in round 1, but declares first_round=2"),
    "ReportsNothing": ("metrics", "returns norm = inf"),
}
BY_NUMBERS = {"Collects", "KeepsInNet", "Unseeded"}  # what numbers show, no line can be told of
BROKEN_MODELS = {
    "wrong_head": ("fits", "the head of broken_models.py:wrong_head does not take"),
    "in_place": ("inputs", "changes the rows"),
    "remembers": ("own state", "when it is called again with the same rows"),
    "unregistered": ("state_dict", "with the tensors of another instance"),
    "single_precision": ("types", "new_zeros"),
    "infinite_gradient": ("gradient", "is not finite"),
    "spoiled_gradient": ("gradient", "modified by an inplace operation"),
}


# most of a check's time; none of the faults needs them
SPARED = ("adam", "skewed", "steps", "everyone", "personal", "chance")


@cache
def verdicts(reference: str) -> list[CheckResult]:
    """What is broken is checked in fewer settings; what is sound, here and in test_algorithms.py, in all."""
    return spared(Check(reference)).verdicts


def spared(check: Check) -> Check:
    """The same without those settings."""
    if subject := check._subject:
        subject.cases = subject.cases._replace(**dict.fromkeys(SPARED, subject.cases.few))
    return check


def broken(reference: str) -> CheckResult:
    """The one check that fails; those that need it are skipped, and all others pass."""
    found = [v for v in verdicts(reference) if v.status == "failed"]
    assert len(found) == 1, [f"{v.check.name}: {v.violation}" for v in found]
    for verdict in verdicts(reference):
        assert verdict.status != "skipped" or "see above" in verdict.note or repr(found[0].check.name) in verdict.note
    return found[0]


def marked(name: str) -> int:
    """The line that is marked in a class, or for it above all of them."""
    text = ALGORITHMS.read_text().splitlines()
    for number, line in enumerate(text, 1):
        if line.endswith(f"# here: {name}"):
            return number
    start = text.index(f"class {name}(Base):")
    return next(i for i, line in enumerate(text[start:], start + 1) if line.endswith("# here"))


@pytest.mark.parametrize("name", BROKEN)
def test_the_check_that_an_algorithm_violates_fails_with_the_line(name: str) -> None:
    check, words = BROKEN[name]
    subject = spared(Check(f"{ALGORITHMS}:{name}"))._subject
    with one_thread():
        (found,) = judge([each for each in CHECKS if each.name == check], subject)
    assert found.violation and words in str(found.violation), str(found.violation)
    assert found.violation.place == ("" if name in BY_NUMBERS else f"{ALGORITHMS.name}:{marked(name)}"), found.violation
    assert found.violation.advice


@pytest.mark.long
@pytest.mark.parametrize("name", BROKEN)
def test_no_other_check_fails(name: str) -> None:
    assert broken(f"{ALGORITHMS}:{name}").check.name == BROKEN[name][0]


@pytest.mark.parametrize("name", BROKEN_MODELS)
def test_only_the_check_that_a_model_violates_fails(name: str) -> None:
    check, words = BROKEN_MODELS[name]
    found = broken(f"{MODELS}:{name}")
    assert found.check.name == check and words in str(found.violation), str(found.violation)


def test_a_sound_model_passes_all_checks() -> None:
    assert {v.status for v in verdicts(f"{MODELS}:sound")} == {"passed"}


def test_what_an_author_should_know_of_a_model_is_noted() -> None:
    notes = {v.check.name: v.note for v in verdicts(f"{MODELS}:branches") if v.note}
    line = 1 + next(i for i, text in enumerate(MODELS.read_text().splitlines()) if "z.sum().item()" in text)
    assert f"(broken_models.py:{line})" in notes["one program"] and "one after the other" in notes["one program"]
    assert "BatchNorm1d" in next(v.note for v in verdicts(f"{MODELS}:normed") if v.check.name == "statistics")


def test_every_check_has_an_algorithm_that_violates_it() -> None:
    checks = {check.name for check in CHECKS} - {"recorded"}  # tests/tracing/test_contract.py
    assert checks == {check for check, _ in BROKEN.values()}
    of_models = {check.name for check in models.CHECKS} - {"one program", "statistics"}
    assert of_models == {check for check, _ in BROKEN_MODELS.values()}


def test_the_command_gives_a_line_a_check_and_ends_with_0_1_or_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert fedtune.commands.check.main([f"{ALGORITHMS}:Sound"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("algorithm broken_algorithms.py:Sound (Sound)") and "all 20 checks passed" in out[-1]
    assert len(out) == 21 and all(line.startswith("passed ") for line in out[1:-1])
    assert fedtune.commands.check.main([f"{MODELS}:remembers"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("FAILED   own state") for line in lines) == 1 and re.match(
        r"1 of 8 checks failed", lines[-1]
    )
    for wrong in ("nothing.py", f"{ALGORITHMS}:Nobody", "fedavgg", f"{ALGORITHMS}:Sound --set lamb=1", ""):
        assert fedtune.commands.check.main(wrong.split()) == 2
        said = capsys.readouterr()
        assert not said.out and len(said.err.splitlines()) == 1


@pytest.mark.long
def test_an_algorithm_is_checked_with_a_scenario_and_with_a_users_model() -> None:
    check = spared(Check(f"{ALGORITHMS}:Sound", "gfpl-fmnist-w3", set={"lam": 0.5}))
    assert check.passed and "rows like those of fashion-mnist" in repr(check)
    elsewhere = Check(model=f"{MODELS}:branches", dataset="digits")  # whose file is not in this folder
    assert elsewhere.base is not None and elsewhere.base.dataset == "digits"
    both = spared(Check(f"{ALGORITHMS}:Sound", model=f"{MODELS}:branches"))
    assert both.passed and any("cannot run the model" in v.note for v in both.verdicts)
