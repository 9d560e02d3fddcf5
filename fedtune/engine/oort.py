"""Choosing clients by utility and speed: Oort (Lai et al., OSDI 2021, arXiv:2010.06081), with FedScale's constants.

    U_k   = n_k sqrt(mean of the squared losses of its rows) · min(1, D / t_k)²
    score = (min(U_k, their 90 % quantile) - min U) / (max U - min U) + sqrt(0.1 ln t / last_k)

last_k is the last round in which client k took part, t_k its device seconds then, its losses those of the model that it
received.  Of m clients, ⌊(1 - ε_t) m⌋ of those who have taken part are drawn in proportion to the scores of all that
reach 5 % of the cut-off, the score of as many; ε_t = max(0.3, 0.9 · 0.98^(t - 1)).  The others have never taken part:
first who was asked in vain least often, then who is faster.  D is a quantile of all t_k, 30 % at first.  After every 20
rounds it moves by 5 points: up if the summed n_k sqrt(…) of all that were taken differs by at most a tenth from that of
the 20 rounds before, down if by five times or more.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedtune.core.trees import Tree

ARMS = "arms"  # the entry of State.extra: tensors [K], float64, on the CPU, and the pacer's scalars
STEP, MOVE = 20, 0.05  # the pacer's


def arms(extra: dict[str, Tree], clients: int) -> dict[str, Tensor]:
    """What is known of the clients: `last` is 0 for those who have never taken part."""
    known = {n: torch.zeros(clients, dtype=torch.float64) for n in ("utility", "seconds", "last", "asked")}
    pacer = {"share": 0.3, "now": 0.0, "before": 0.0}
    return {n: t.cpu() for n, t in extra.get(ARMS, {}).items()} or known | {
        n: torch.tensor(v, dtype=torch.float64) for n, v in pacer.items()
    }


def scores(arms: dict[str, Tensor], t: int) -> tuple[Tensor, Tensor]:
    """Who has taken part before round t = 2, 3, … [k], and their scores, above 0."""
    known = (arms["last"] > 0).nonzero()[:, 0]
    seconds, last = arms["seconds"][known], arms["last"][known]
    u = arms["utility"][known] * (seconds.quantile(arms["share"]) / seconds).clamp(max=1).nan_to_num(1.0) ** 2
    span = (u.max() - u.min()).clamp(min=1e-12)
    return known, (u.clamp(max=u.quantile(0.9)) - u.min()) / span + (0.1 * math.log(t) / last).sqrt()


def chosen(arms: dict[str, Tensor], t: int, m: int, expected: Tensor, stream: torch.Generator) -> Tensor:
    """m clients for round t, ascending.  expected [K]: seconds of a task, for those who have never taken part."""
    asked, last = arms["asked"].tolist(), arms["last"].tolist()
    new = sorted((k for k, was in enumerate(last) if not was), key=lambda k: (asked[k], expected[k].item(), k))
    explored = max(0.3, 0.9 * 0.98 ** (t - 1))
    exploited = min(len(last) - len(new), max(int(round((1 - explored) * m, 9)), m - len(new)))
    some = torch.tensor(new[: m - exploited], dtype=torch.int64)
    if exploited:
        known, score = scores(arms, t)
        score[score < 0.05 * score.topk(exploited).values[-1]] = 0.0
        some = torch.cat([some, known[torch.multinomial(score, exploited, generator=stream)]])
    return some.sort().values


def learnt(
    arms: dict[str, Tensor], t: int, asked: Tensor, utility: Tensor, taken: Tensor, spent: Tensor
) -> dict[str, Tensor]:
    """The same after round t.  utility: n_k sqrt(…) of those asked, ascending as those taken; spent [K]: seconds."""
    arms = {n: v.clone() for n, v in arms.items()}
    mine = utility[torch.isin(asked, taken)]
    arms["asked"][asked] += 1
    for name, values in (("utility", mine), ("seconds", spent[taken]), ("last", float(t))):
        arms[name][taken] = values
    arms["now"] += mine.sum()
    if t % STEP == 0:
        moved = (arms["now"] - arms["before"]).abs()
        up, down = moved <= 0.1 * arms["before"], moved >= 5 * arms["before"]
        if t > STEP:
            arms["share"] = (arms["share"] + MOVE * (up.double() - down.double())).clamp(MOVE, 1.0)
        arms["before"], arms["now"] = arms["now"], torch.zeros_like(arms["now"])
    return arms
