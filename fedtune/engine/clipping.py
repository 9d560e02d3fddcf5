"""Privacy of clients: DP-FedAvg (McMahan et al., ICLR 2018, arXiv:1710.06963), with a fixed bound or an adapting one.

    clip     f_k = min(1, C_t / |Δ_k|),  |·| over all trained tensors of `shared` as one vector
    scale    u_k = m_t / (q K) · f_k Δ_k + z C_t g / M,     g ~ N(0, I), the same for all clients;  M = q K
    server   the plain mean of the m_t uploads is  Σ_k f_k Δ_k / (q K) + z C_t g / M,  whatever it does with it then
    adapt    b = ½ + Σ_k (1[|Δ_k| <= C_t] - ½) / (q K) + N(0, σ_b²) / M       the share of updates that are not clipped
             C_t+1 = C_t exp(-η_C (b - γ))

The denominator q K is the expected number of clients, fixed before the run: m_t is data.  With a cohort, M is that: the
noise is that of a mean over so many clients.  Adaptive bound: Andrew et al., NeurIPS 2021, arXiv:1905.03871; the bits
are centred before the noise, so that one client moves their sum by ½.  No two configurations share their noise: with
the same in both, the difference of two models would have none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fedtune.core import randomness
from fedtune.engine.wire import Context, Sent, Update, per_client
from fedtune.experiment.privacy import Privacy

BOUND = "clip_bound"  # the entry of `State.extra` with the bound of the next round


@dataclass(frozen=True)
class Clipping:
    """The stage that clips and scales each update and adds the round's noise."""

    p: Privacy

    def apply(self, update: Update, ctx: Context) -> Sent:
        """As in the module; with no client there is one update of zeros, which gets the noise."""
        p, m = self.p, len(ctx.ids)
        bound = float(ctx.extra.get(BOUND, p.clip)) if p.quantile else p.clip  # another trial's state may have one
        norms = torch.stack([u.double().flatten(1).square().sum(1) for u in update.values()]).sum(0).sqrt()
        changed, scale = norms > bound, m / p.expected
        noise = randomness.stream(ctx.s.task.seed, "clip noise", ctx.t, *ctx.s.draws)
        factor = torch.where(changed, bound / norms, 1.0)
        sent = {n: torch.where(per_client(changed, u), u * per_client(factor, u).to(u), u) for n, u in update.items()}
        ctx.row["update_clip"] = bound
        ctx.row["clip_share"] = changed.double().mean().item() if m else None
        ctx.row["update_norm"] = norms.quantile(0.5).item() if m else None
        if p.quantile:
            ctx.extra[BOUND] = torch.tensor(self._next(bound, int((~changed[:m]).sum()), m, ctx), dtype=torch.float64)
        if scale != 1:
            sent, changed = {n: u * scale for n, u in sent.items()}, torch.ones_like(changed)
        if p.update_noise:
            deviation, changed = p.update_noise * bound / p.cohort, torch.ones_like(changed)
            for n, u in sent.items():
                sent[n] = u + (deviation * torch.randn(u.shape[1:], generator=noise, dtype=u.dtype)).to(u)
        return Sent(sent, changed)

    def _next(self, bound: float, unclipped: int, m: int, ctx: Context) -> float:
        """The next round's bound."""
        p, draws = self.p, randomness.stream(ctx.s.task.seed, "count noise", ctx.t, *ctx.s.draws)
        noise = p.count_noise * torch.randn((), generator=draws, dtype=torch.float64).item() / p.cohort
        share = 0.5 + (unclipped - m / 2) / p.expected + noise
        return bound * math.exp(-p.clip_rate * (share - p.quantile))
