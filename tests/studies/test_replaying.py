"""What a replay says where numbers are others: how far they are apart, and what is known to be another."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedtune.studies.replaying import _distance, _how_far, _unlike

ROUNDS = pd.DataFrame({"round": [1, 2], "val_acc": [0.25, 0.5], "comm_mb": [80.0, 160.0], "note": ["a", "b"]})
CPU = {"machine": "x86_64", "instructions": "AVX2", "gpus": ["H100"]}


def record(**more: Any) -> dict[str, Any]:
    return {
        "versions": {"fedtune": "0.3.0", "torch": "2.13"},
        "git_commit": "0123456789",
        "hardware": CPU,
        "device": "cpu",
    } | more


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"val_acc": [0.25, 0.4]}, "the largest relative difference is 0.2, in val_acc"),
        # megabytes are larger numbers, but these are nearer to one another
        ({"val_acc": [0.2, 0.5], "comm_mb": [81.0, 160.0]}, "the largest relative difference is 0.2, in val_acc"),
        ({"val_acc": [0.25, 0.5 + 1e-8]}, "the largest relative difference is 2e-08, in val_acc"),
        ({"val_acc": [0.25, np.nan]}, "1 trial with rounds or values that only one of the two runs has"),
        ({"val_acc": [0.2, np.nan]}, "1 trial with rounds or values that only one of the two runs has"),
        ({"note": ["a", "c"]}, "values that are not numbers differ"),
    ],
)
def test_how_far_numbers_are_apart(changed: dict[str, Any], said: str) -> None:
    assert _how_far([_distance(ROUNDS, ROUNDS.assign(**changed))]) == said


def test_other_rounds_and_missing_values_are_told_beside_a_small_difference() -> None:
    near, shorter = ROUNDS.assign(val_acc=[0.25, 0.5 + 1e-8]), ROUNDS[:1]
    blank = ROUNDS.assign(val_acc=[0.25, np.nan])
    assert _how_far([_distance(ROUNDS, near), _distance(ROUNDS, shorter), _distance(ROUNDS, blank)]) == (
        "the largest relative difference is 2e-08, in val_acc; 2 trials with rounds or values that only one of the two "
        "runs has"
    )
    both_blank = pd.DataFrame({"test_acc": [np.nan, 0.5]})
    assert _distance(both_blank, both_blank.assign(test_acc=[np.nan, 0.25])).tolist() == [0.5]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, ""),
        ({"device": "cuda"}, "; trained by device cpu, now by device cuda"),
        ({"git_commit": "abcdef0123"}, "; trained by commit 01234567, now by commit abcdef01"),
        ({"hardware": CPU | {"instructions": "AVX512"}}, "; trained by instructions AVX2, now by instructions AVX512"),
        ({"hardware": {"machine": "x86_64"}}, ""),  # a record from before says less, which is no difference
        ({"hardware": CPU | {"gpus": []}}, ""),  # nothing was trained on it
        (
            {"versions": {"fedtune": "0.4.0", "torch": "2.14"}},
            "; trained by fedtune 0.3.0, torch 2.13, now by fedtune 0.4.0, torch 2.14",
        ),
    ],
)
def test_what_is_known_to_be_another_is_named(more: dict[str, Any], said: str) -> None:
    assert _unlike(record(), record(**more)) == said
    one, other = (record(device="cuda", hardware=CPU | {"gpus": [name]}) for name in ("H100", "H200"))
    assert _unlike(one, other) == "; trained by gpus H100, now by gpus H200"
