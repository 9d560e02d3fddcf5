"""The tables of a comparison as plain text, Markdown and LaTeX."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedtune.core.metrics import is_share, label, limits
from fedtune.core.objectives import ACCURACY
from fedtune.core.statistics import UNBOUNDED, figure, interval, number, unit_of
from fedtune.core.terminal import printable
from fedtune.runs.tables import UNTUNED
from fedtune.runs.trial_states import FAILED
from fedtune.studies.comparison import tables
from fedtune.studies.comparison.tables import LARGER, LEVEL, UNTESTED, UNTOLD, WITHIN, configurations
from fedtune.tuning import verdict

WORDS = ("algorithm", "pair", "published %", "tuned hyperparameters", "verdict")  # columns that hold no numbers
SHOWN = 5  # lines of what to know that are not folded, nor left out in a terminal
OPENING = 6  # columns of the table that opens a report; the others follow in one of their own
NAMED = 5  # names that a sentence lists; more are counted
ONE_SEARCH = "Each algorithm was searched once, and another search may find another order: there is no verdict."


def outcome(table: pd.DataFrame, pairs: pd.DataFrame, against: pd.DataFrame, sign: float = 1) -> str:
    """Sentences on the best tuned algorithm, and on which others differ from it, and from each other baseline.

    The figures are those of the tables; "" where no algorithm has a tuned one.  With one search there is no verdict.
    table: the best algorithm first, a control last.  sign: -1 where the smaller figure is the better one.
    """
    if not (best := leader(table)):
        return ""
    first = f"{best} ranks first on fresh seeds with {of_first(table, 'tuned')}"
    if not judged(pairs):
        return f"{first}." + f" {ONE_SEARCH}" * bool(len(pairs))
    tested = pairs[pairs["verdict"] != UNTESTED]
    lost = [n for n in dict.fromkeys(pairs["other"]) if n not in {best, *tested["algorithm"], *tested["other"]}]
    pairs, against = (of[~of[["algorithm", "other"]].isin(lost).any(axis=1)] for of in (pairs, against))
    last = [f"{_who(lost)} could not be tested"] * bool(lost)
    if len(pairs) > 1 and (pairs["verdict"] == UNTOLD).all():
        first = f"No two of {len({*pairs['algorithm'], *pairs['other']})} can be told apart; {first}"
        clauses = _differing(against[against["verdict"] != UNTOLD], sign)
        return "; ".join([first, *(f"tested against baselines only, {clause}" for clause in clauses), *last]) + "."
    others = _others(pairs, best)
    if tables.LOCAL not in set(against["other"]):  # it may take part as any other: who loses to it is said in any case
        against = pd.concat([against, _others(pairs, tables.LOCAL)])
    again = against["verdict"] == against["other"].map(others.set_index("algorithm")["verdict"])
    anew = (against["other"] != best) & ~((against["algorithm"] == best) & again)
    clauses = _differing(pd.concat([others, against[anew]]), sign)
    return "; ".join([first, *clauses, *last]) + "."


def gains(table: pd.DataFrame, sign: float = 1) -> str:
    """A sentence on whom tuning helps, by the interval of each gain; "" where none has one.  sign: as of `outcome`."""
    gain, half = sign * table["gain"], table["gain_half"]
    kinds = {  # a half of 0: they are equal
        "tuning helps {}": (gain > half) & (half > 0),
        "tuning harms {}": (-gain > half) & (half > 0),
        "tuning changes nothing for {}": half == 0,
        "whether tuning helps {} cannot be told": (abs(gain) <= half) & (half > 0),
    }
    said = "; ".join(text.format(_who([*table["algorithm"][of]])) for text, of in kinds.items() if of.any())
    return f"{said[:1].upper()}{said[1:]} (95 % interval of each gain)." if said else ""


def leader(table: pd.DataFrame) -> str:
    """The algorithm that stands first in a comparison's table; "" where none has a tuned figure."""
    return str(table["algorithm"].iloc[0]) if table["tuned"][:1].notna().any() else ""


def of_first(table: pd.DataFrame, column: str) -> str:
    """A figure of that algorithm with its unit: `94.78 ± 2.54 %`, `test loss 0.2980 ± 0.0025`."""
    row = table.iloc[0]
    return f"{label(row.get('metric', ''))} {figure(_metric(table), row[column], row[f'{column}_half'])}".strip()


def told(pairs: pd.DataFrame) -> pd.DataFrame:
    """The pairs with a claim: larger, or within the margin; with one search, those with a corrected p below 5 %."""
    if pairs.empty:
        return pairs
    return pairs[pairs["verdict"].isin([LARGER, WITHIN]) if judged(pairs) else pairs["p_holm"] < LEVEL]


def judged(pairs: pd.DataFrame) -> bool:
    """Whether a table of pairs has verdicts: with one search of each algorithm it has none."""
    return "verdict" in pairs and bool(pairs["verdict"].fillna("").any())


def paired(pairs: pd.DataFrame, searches: int, margin: float) -> str:
    """How a table of pairs is paired, and against which margin it judges, in words.  searches: of each algorithm."""
    if searches == 1:
        return "paired by seed"
    return f"paired by search, with verdicts against a margin of {sized(margin, pairs)} at 5 % for all together"


def sized(margin: float, pairs: pd.DataFrame) -> str:
    """A difference that matters, in the unit of a table of pairs."""
    return f"{100 * margin:g} points" if in_percent(pairs) else f"{margin:g}"


def _who(names: Sequence[str]) -> str:
    return listed(names) if len(names) <= NAMED else f"{len(names)} algorithms"


def _others(pairs: pd.DataFrame, name: str) -> pd.DataFrame:
    """The pairs with an algorithm, each as another one minus it; pairs may have equal figures in any order."""
    its = pairs[pairs["algorithm"] == name]
    its = its.assign(algorithm=its["other"], other=name, difference=-its["difference"])
    return pd.concat([its, pairs[pairs["other"] == name]])


def _differing(pairs: pd.DataFrame, sign: float) -> list[str]:
    """Which algorithms differ from which by more than the margin, in words; whom the same ones do, together."""
    large, better = pairs["verdict"] == LARGER, sign * pairs["difference"] > 0
    clauses: list[str] = []
    for of, verbs, how in (
        (large & ~better, ("is", "are"), "worse than"),
        (large & better, ("is", "are"), "better than"),
        (pairs["verdict"] == WITHIN, ("is", "are"), "within the margin of"),
        (pairs["verdict"] == UNTOLD, ("cannot be",) * 2, "told apart from"),
        (pairs["verdict"] == UNTESTED, ("could not be",) * 2, "tested against"),
    ):
        whom: dict[tuple[str, ...], list[str]] = {}
        for other, group in pairs[of].groupby("other", sort=False)["algorithm"]:
            whom.setdefault(tuple(group), []).append(str(other))
        for names, others in whom.items():
            clauses.append(f"{_who(names)} {verbs[len(names) > 1]} {how} {listed(others)}")
    return clauses


def listed(names: Sequence[object]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    texts = [printable(str(name)) for name in names]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def caveats(records: Mapping[str, Mapping[str, Any]], trials: int, evaluations: pd.DataFrame) -> list[str]:
    """What to know before you trust a comparison.

    Searches that used test rows, programs without a seed, searches that were almost random, values at the end of their
    range.  records: of each search.  trials: of each.  evaluations: the runs on fresh seeds.
    """
    told = (
        of(record) for of in (verdict.on_test_rows, verdict.unseeded, verdict.unheard) for record in records.values()
    )
    lines = [line for of in told for line in of]
    searcher = next((str(record.get("searcher")) for record in records.values()), "")
    lines += verdict.as_random(searcher, trials, "these as random searches")
    tuned = evaluations[evaluations["chosen"]]
    lines += _failed(evaluations) + _chosen_anew(evaluations, tuned)
    for name, record in records.items():
        lines += verdict.at_edges(name, configurations(tuned[tuned["algorithm"] == name]), record.get("space") or {})
    return list(dict.fromkeys(lines))


def control(pair: pd.DataFrame) -> list[str]:
    """A line on an algorithm that took part twice under two names: how far it is from itself (`tables.control`)."""
    return [
        f"control: {row.other} took part twice under two names, and {row.algorithm} − {row.other} is "
        f"{from_itself(pair)}{': the verdicts here are not to be trusted' * (row.verdict == LARGER)}"
        for row in pair.itertuples()
    ]


def from_itself(pair: pd.DataFrame) -> str:
    """How far a control is from the algorithm that it is: `+0.10 ± 1.20 points (cannot be told)`."""
    if math.isnan(pair["difference"].iloc[0]):
        return f"unknown ({UNTESTED})"
    return f"{shown_pairs(pair)['difference'].iloc[0]}{' points' * in_percent(pair)} ({pair['verdict'].iloc[0]})"


def _failed(evaluations: pd.DataFrame) -> list[str]:
    reasons = evaluations.get("reason", pd.Series("", evaluations.index))  # built-in algorithms alone have none
    failed = evaluations[reasons.astype(str).str.startswith(FAILED)]
    return [f"{row.algorithm} ({row.configuration}, seed {row.seed}) {row.reason}" for row in failed.itertuples()]


def _chosen_anew(evaluations: pd.DataFrame, tuned: pd.DataFrame) -> list[str]:
    others = tuned[tuned["configuration"] != "top 1"].drop_duplicates("algorithm")
    if others.empty:
        return []
    named = listed([f"{row['algorithm']} (trial {row.get('trial', '?')})" for row in others.to_dict("records")])
    return [
        f"of each search's best {tops(evaluations)}, the one with the best validation score on the fresh seeds is the "
        f"tuned one; of {named} that is not the search's own best (--top-k 1 takes that)"
    ]


def tops(evaluations: pd.DataFrame) -> int:
    """How many configurations of a search fresh seeds judge, at most: it may have finished fewer than it could name."""
    return int(evaluations.loc[~evaluations["configuration"].isin(UNTUNED), "configuration"].nunique())


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """The table of accuracies as text, in percent; of another metric than those, as it is."""
    scale, form, _ = unit_of(_metric(table))
    other = "metric" in table and len(table)
    named = (f" {table['metric'].iloc[0]}" if other else "") + " %" * in_percent(table)
    gap = [
        number(scale * g, f"+{form}") + ("" if math.isnan(d) else f" ({number(scale * d, f'+{form}')})")
        for g, d in zip(table["selection_gap"], table["default_gap"], strict=True)
    ]
    shares = {"tuned test_acc %": "tuned_test_acc"} if other else {}
    of_accuracy = table.drop(columns="metric", errors="ignore")
    first, last = (
        {title: [number(100 * v, ".2f") for v in table[name]] for title, name in of.items()}
        for of in (shares | {"worst tenth %": "worst10"}, {"std over clients %": "clients_std"})
    )
    unknown = first | {f"{of} %": _with_half(of_accuracy, of.split()[0]) for of in ("all classes", "foreign")} | last
    borrowed, beyond = _borrowed(table, named) if "lender" in table else ({}, {})
    columns = {
        "algorithm": table["algorithm"],
        f"tuned{named}": _unless_diverged(table, "tuned"),
        f"default{named}": _unless_diverged(table, "default"),
        **borrowed,
        "gain": _with_half(table, "gain", sign="+"),
        **beyond,
        **unknown,
        "gap (default's)": gap,
        "published %": table["published"].astype(object).fillna(""),
    }
    return _without(dict.fromkeys(unknown, "–") | {"published %": ""}, pd.DataFrame(columns))


def costs(table: pd.DataFrame) -> pd.DataFrame:
    """What the tuned configurations cost and what each search used up, as text."""
    forms = {
        "round with 95 % of final accuracy": ("rounds_to_95", ".0f"),
        "MB to that round": ("mb_to_95", ".3g"),
        "MB a round": ("mb_per_round", ".3g"),
        "s a run": ("seconds", ".3g"),
        "searched: trials": ("search_trials", ".0f"),
        "rounds": ("search_rounds", ".0f"),
        "MB": ("search_mb", ".4g"),
        "s": ("search_seconds", ".0f"),
    }
    columns = {title: [number(v, form) for v in table[name]] for title, (name, form) in forms.items()}
    unknown = [title for title in columns if "MB" in title or "95 %" in title]
    return _without(dict.fromkeys(unknown, "–"), pd.DataFrame({"algorithm": table["algorithm"]} | columns))


def _without(none: Mapping[str, str], frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop(columns=[name for name, text in none.items() if set(frame[name]) <= {text}])


def shown_pairs(pairs: pd.DataFrame) -> pd.DataFrame:
    """The pairs as text."""
    columns = pd.DataFrame(
        {
            "pair": pairs["algorithm"] + " − " + pairs["other"],
            "difference": _with_half(pairs, "difference", sign="+", half="half"),
            "p": [number(v, ".2g") for v in pairs["p"]],
            "p (Holm)": [number(v, ".2g") for v in pairs["p_holm"]],
            "verdict": pairs["verdict"].fillna("") if "verdict" in pairs else "",
        }
    )
    return _without({"verdict": ""}, columns)


def markdown(frame: pd.DataFrame) -> str:
    """A table of text in Markdown."""
    rows = [list(frame), ["---"] * frame.shape[1], *frame.astype(str).values.tolist()]
    return "\n".join("| " + " | ".join(map(in_markdown, row)) + " |" for row in rows) + "\n"


def in_markdown(cell: str) -> str:
    """A cell's text, in which a name is no mark-up: own|net.py, a class *all*, <b>."""
    return re.sub(r"[|*`\\]|<(?=[A-Za-z/!?])", r"\\\g<0>", " ".join(cell.splitlines()))


def latex(title: str, frame: pd.DataFrame, label: str) -> str:
    """A table of text in LaTeX with a caption and a label, for a paper and the package booktabs."""
    wide = {"tuned hyperparameters": r"p{0.75\linewidth}", "verdict": "l"}
    styled = frame.style.hide(axis="index").format(in_latex).format_index(in_latex, axis="columns")
    styled.set_table_styles([{"selector": "small", "props": ":;"}])  # or many a table is wider than its page
    return styled.to_latex(
        hrules=True,
        column_format="l" + "".join(wide.get(name, "r") for name in list(frame)[1:]),
        position="t",
        position_float="centering",
        caption=f"{in_latex(title[:1].upper() + title[1:])}.",
        label=label,
    )


TEX = {c: "\\" + c for c in "&%$#_{}"} | {c: f"${c}$" for c in "<>"}
TEX |= {"±": "$\\pm$", "−": "$-$", "≤": "$\\leq$", "≥": "$\\geq$", "–": "--", "…": "\\ldots{}", "×": "$\\times$"}
TEX |= {"\\": "\\textbackslash{}", "~": "\\~{}", "^": "\\^{}"}


def in_latex(cell: str) -> str:
    """A text in which no letter is a command of TeX's, two hyphens are no dash, and a bracket is no row's option."""
    line = re.sub("-(?=-)", "-\N{WORD JOINER}", printable(" ".join(cell.splitlines())))
    text = "".join(TEX.get(c, c) for c in line).replace("\N{WORD JOINER}", "{}")
    return "{}" * text.startswith(("[", "*")) + text


def _borrowed(table: pd.DataFrame, named: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The column of what was trained with another algorithm's tuned values, and that of what tuning gains beyond it."""
    own, values = table["lender"].fillna("") == "", f"with {max(table['lender'].fillna(''))}'s values"
    shown = ["–" if of else text for of, text in zip(own, _unless_diverged(table, "borrowed"), strict=True)]
    return {f"{values}{named}": shown}, {"gain over borrowed": _with_half(table, "beyond", sign="+")}


def _unless_diverged(table: pd.DataFrame, name: str) -> list[str]:
    how, runs = table.get("lost", ["diverged"] * len(table)), table.get(f"{name}_runs", table["runs"])
    return [
        text if text != "–" else f"{word} in {k:.0f} of {n:.0f}" if k > 0 else "none found"
        for text, word, k, n in zip(_with_half(table, name), how, table[f"{name}_diverged"], runs, strict=True)
    ]


def in_percent(frame: pd.DataFrame) -> bool:
    """Whether a table's figures are shown in percent: those of accuracies and F1 are."""
    return is_share(_metric(frame))


def _metric(frame: pd.DataFrame) -> str:
    return str(next(iter(frame.get("metric", ())), ACCURACY.tested))


def _with_half(frame: pd.DataFrame, column: str, sign: str = "", half: str = "") -> list[str]:
    scale, form, _ = unit_of(_metric(frame))
    low, high = UNBOUNDED if sign else limits(_metric(frame))
    pairs = zip(frame[column], frame[half or f"{column}_half"], strict=True)
    return [interval(scale * v, scale * h, sign + form, within=(scale * low, scale * high)) for v, h in pairs]
