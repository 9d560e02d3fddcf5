"""What it costs the server to train generators: against a plain PyTorch loop, and with more and more clients.

    python -m benchmarks.server [--json FILE] [--repeats 5]

Ratios   `aggregate` with a round's 50 generator steps of FedPA (10 heads) and of FedGenP (20 generators, each under 20
         heads), against a plain loop: nn.Module, torch.optim.Adam, and for every generator, in every step, one head
         after the other.  B = 32, 32 features, 10 classes, default hyperparameters.  Both sides draw the same noise
         within the measured time and end, in float64, with the same weights.  Timed in float32, one thread, taking
         turns, the least of several repeats.  Clients send heads only: averaging the rest costs both sides the same.
Scaling  10 steps (a round has 50) of FedGenP with K clients, of which all take part, or 10.  Every generator is trained
         with every head, so this work grows as K²; the rest grows as K.  Each row has a fresh process.  Memory is its
         peak minus what it used before; the C library returns freed memory as it does by default.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.timing import best_of, status
from fedtune.core import memory, randomness
from fedtune.core.trees import leaves, take, tree_map
from fedtune.experiment.algorithm import Ragged, Task
from fedtune.nn.generators import label_share
from fedtune.nn.prototypes import mean_by_count, mean_distance, row_distance
from fedtune.trainables._generative import Generative
from fedtune.trainables.fedgenp import FedGenP
from fedtune.trainables.fedpa import FedPA

CLASSES, FEATURES, TARGET = 10, 32, 3.0
SCALES = [(10, 10), (20, 20), (50, 50), (100, 100), (200, 200), (50, 10), (200, 10), (1000, 10)]  # K, active
SCALING_STEPS = 10


class Generator(nn.Module):
    """The net of nn/generators.py as a module; two outputs where the algorithm asks for mean and log-variance."""

    def __init__(self, alg: Generative, outputs: int) -> None:
        super().__init__()
        self.lin = nn.Linear(alg.noise_width + CLASSES, alg.gen_hidden)
        self.norm = nn.BatchNorm1d(alg.gen_hidden)
        self.out = nn.Linear(alg.gen_hidden, outputs * FEATURES)

    def forward(self, noise: Tensor, y: Tensor) -> Tensor:
        x = torch.cat([noise, F.one_hot(y, CLASSES).to(noise.dtype)], 1)
        return self.out(F.relu(self.norm(self.lin(x))))

    def put(self, net: dict[str, Tensor]) -> Generator:
        """Take over the values of a net of nn/generators.py."""
        values = {n.replace("in.", "lin.", 1): t for n, t in net.items()}
        self.to(net["in.weight"].dtype).load_state_dict(values, strict=False)  # all but BatchNorm's counter
        return self

    def values(self) -> dict[str, Tensor]:
        return {n.replace("lin.", "in.", 1): t.detach() for n, t in self.state_dict().items()}


def situation(alg: Generative, clients: int, active: int, dtype: torch.dtype) -> tuple[dict, dict, Task]:
    """A server before its first round, and what `active` of the clients sent: unlike heads, label skew, prototypes."""
    rng = torch.Generator().manual_seed(0)
    task = Task(CLASSES, FEATURES, clients, 32, 0, t=1)
    heads = {
        "head.weight": torch.randn(active, CLASSES, FEATURES, generator=rng) / 4,
        "head.bias": torch.randn(active, CLASSES, generator=rng) / 10,
    }
    counts = torch.randint(0, 60, (active, CLASSES), generator=rng) + 1
    protos = Ragged(torch.randn(active, CLASSES, FEATURES, generator=rng), counts > 20)
    up = {"ids": torch.arange(active), "rows": counts.sum(1), "shared": heads, "counts": counts, "protos": protos}
    server = alg.init(task) | {"shared": {n: t[0] for n, t in heads.items()}}

    def cast(t: Tensor) -> Tensor:
        return t.to(dtype) if t.is_floating_point() else t

    return tree_map(cast, server), tree_map(cast, up), task


def plain_fedpa(alg: FedPA, server: dict, up: dict, task: Task) -> list[dict[str, Tensor]]:
    """Round 1 of FedPA's server, one head after the other (equations 3 to 8)."""
    server = server | {"counts": up["counts"]}
    noise, labels = alg.draw(server, task, ())
    present = up["protos"].present
    protos, seen = mean_by_count(up["protos"].values, up["counts"] * present)
    cap, share, clients = mean_distance(protos, seen, "l2"), label_share(up["counts"]).to(protos), len(up["ids"])
    weight, bias = up["shared"]["head.weight"], up["shared"]["head.bias"]
    generator = Generator(alg, 1).put(server["nets"])
    optimizer = torch.optim.Adam(generator.parameters(), lr=alg.gen_lr)
    for eps, y in zip(noise, labels, strict=True):
        optimizer.zero_grad()
        h = generator(eps, y)
        agree = torch.zeros((), dtype=h.dtype)
        for k in range(clients):
            losses = F.cross_entropy(F.linear(h, weight[k], bias[k]), y, reduction="none")
            agree = agree + (share[k][y] * losses).mean()
        far = (row_distance(h, protos[y], "l2") * seen[y]).mean()
        apart = (h[:, None] - h).abs().mean(2) * (eps[:, None] - eps).square().mean(2)
        pairs = (y[:, None] == y) & ~torch.eye(len(y), dtype=torch.bool)
        diversity = (-(apart * pairs).sum() / pairs.sum().clamp(min=1)).exp()
        loss = alg.gamma_fid * agree / clients + alg.gamma_div * diversity
        (loss - alg.gamma_ad * far.clamp(max=cap)).backward()
        optimizer.step()
    return [generator.values()]


def plain_fedgenp(alg: FedGenP, server: dict, up: dict, task: Task) -> list[dict[str, Tensor]]:
    """Round 1 of FedGenP's server: for each generator, in each step, one head after the other (equations 1 to 3)."""
    clients = len(up["ids"])
    noise, labels = alg.draw(server, task, (clients,))
    stream = randomness.stream(task.seed, "variation", 1)
    xi = torch.randn(*labels.shape, FEATURES, generator=stream, dtype=noise.dtype)
    weight, bias, cap = up["shared"]["head.weight"], up["shared"]["head.bias"], alg.cap * math.log(CLASSES)
    out = []
    for k in range(clients):
        generator = Generator(alg, 2).put(take(server["nets"], k))
        optimizer = torch.optim.Adam(generator.parameters(), lr=alg.gen_lr)
        for s in range(alg.gen_steps):
            optimizer.zero_grad()
            y = labels[s, k]
            mu, logvar = generator(noise[s, k], y).chunk(2, 1)
            logvar = logvar.clamp(-8, 4)
            h = mu + (logvar / 2).exp() * xi[s, k]
            loss = alg.lam_kl * (mu**2 + logvar.exp() - logvar - 1).sum(1).mean() / 2
            for i in range(clients):
                losses = F.cross_entropy(F.linear(h, weight[i], bias[i]), y, reduction="none")
                if i == k:
                    loss = loss - alg.beta * losses.clamp(max=cap).mean()
                else:
                    loss = loss + losses.mean() / (clients - 1)
            loss.backward()
            optimizer.step()
        out.append(generator.values())
    return out


# name, algorithm, heads, the loop, and how many times `repeats` it is timed: a short job needs more turns
CASES: list[tuple[str, Generative, int, Callable[..., list[dict[str, Tensor]]], int]] = [
    ("FedPA", FedPA(), 10, plain_fedpa, 10),
    ("FedGenP", FedGenP(), 20, plain_fedgenp, 1),
]


def ratio_row(name: str, alg: Any, clients: int, plain: Callable[..., Any], repeats: int) -> dict[str, Any]:
    server, up, task = situation(alg, clients, clients, torch.float64)
    stacked_nets, loop = alg.aggregate(server, up, task)["nets"], plain(alg, server, up, task)
    difference = 0.0
    for n in ("in.weight", "norm.weight", "norm.bias", "norm.running_var", "out.weight", "out.bias"):
        stacked = torch.stack([net[n] for net in loop]).view_as(stacked_nets[n])
        torch.testing.assert_close(stacked_nets[n], stacked, rtol=0, atol=1e-9)  # the same work
        difference = max(difference, (stacked_nets[n] - stacked).abs().max().item())
    given = situation(alg, clients, clients, torch.float32)
    fast, slow = best_of([lambda: alg.aggregate(*given), lambda: plain(alg, *given)], repeats)
    nets = len(loop)
    return {
        "what": f"{name}, {nets} net{'s' * (nets > 1)} x {alg.gen_steps} steps, {clients} heads",
        "ours_ms": fast * 1e3,
        "loop_ms": slow * 1e3,
        "ratio": slow / fast,
        "target": TARGET,
        "difference": difference,
    }


def scale_here(clients: int, active: int) -> dict[str, Any]:
    """Seconds and peak memory of one round's generator training, in this (fresh) process."""
    torch.set_num_threads(1)
    alg = FedGenP(gen_steps=SCALING_STEPS)
    alg.aggregate(*situation(alg, 2, 2, torch.float32))  # what is loaded and made once is no cost of a round
    server, up, task = situation(alg, clients, active, torch.float32)
    server = tree_map(torch.Tensor.clone, server)  # what is the same for all at first takes its memory too
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    before, began = status("VmRSS"), time.perf_counter()
    alg.aggregate(server, up, task)
    seconds = time.perf_counter() - began
    stored = sum(t.numel() * t.element_size() for name in ("nets", "memory") for t in leaves(server[name]))
    return {
        "clients": clients,
        "active": active,
        "steps": SCALING_STEPS,
        "seconds": seconds,
        "seconds_per_generator": seconds / active,
        "peak_extra_mib": status("VmHWM") - before,
        "stored_mib": stored / 2**20,
    }


def scale_row(clients: int, active: int, repeats: int) -> dict[str, Any]:
    """The fastest of several fresh processes, with the largest of their peaks."""
    command = [sys.executable, "-m", "benchmarks.server", "--scale", f"{clients},{active}"]
    rows = [json.loads(subprocess.check_output(command, text=True)) for _ in range(repeats)]
    return min(rows, key=lambda r: r["seconds"]) | {"peak_extra_mib": max(r["peak_extra_mib"] for r in rows)}


def slope(rows: list[dict[str, Any]], key: str) -> float:
    """d ln key / d ln K between 50 and 200 clients, all active."""
    a, b = (next(r[key] for r in rows if r["clients"] == r["active"] == k) for k in (50, 200))
    return math.log(b / a) / math.log(200 / 50)


def measure(repeats: int) -> dict[str, Any]:
    """Both parts, printed as they are found."""
    print(f"{'what':36} {'ours ms':>9} {'loop ms':>9} {'ratio':>6} {'target':>6}", flush=True)
    ratios = []
    for name, alg, clients, plain, times in CASES:
        row = ratio_row(name, alg, clients, plain, repeats * times)
        ratios.append(row)
        print(
            f"{row['what']:36} {row['ours_ms']:9.1f} {row['loop_ms']:9.1f} {row['ratio']:6.2f} {row['target']:6.2f}"
            f"{'' if row['ratio'] >= row['target'] else '  below'}",
            flush=True,
        )
    print(f"FedGenP, {SCALING_STEPS} steps of all active clients' generators under all active clients' heads")
    print(f"{'clients':>7} {'active':>6} {'seconds':>8} {'ms/net':>7} {'peak MiB':>9} {'stored MiB':>11}", flush=True)
    scaling = []
    for clients, active in SCALES:
        row = scale_row(clients, active, min(repeats, 3))
        scaling.append(row)
        print(
            f"{clients:7} {active:6} {row['seconds']:8.3f} {row['seconds_per_generator'] * 1e3:7.1f} "
            f"{row['peak_extra_mib']:9.0f} {row['stored_mib']:11.1f}",
            flush=True,
        )
    slopes = {key: slope(scaling, key) for key in ("seconds", "peak_extra_mib")}
    print(f"log-log slope from K = 50 to 200: seconds {slopes['seconds']:.2f}, memory {slopes['peak_extra_mib']:.2f}")
    return {"ratios": ratios, "scaling": scaling, "slopes": slopes}


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", help=argparse.SUPPRESS)  # K,active: one row of the scaling, in this process
    args = parser.parse_args()
    if args.scale:
        print(json.dumps(scale_here(*map(int, args.scale.split(",")))))
        return 0
    torch.set_num_threads(1)
    memory.keep_freed_memory()
    got = measure(args.repeats)
    if args.json:
        args.json.write_text(json.dumps(got, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
