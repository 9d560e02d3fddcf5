"""Small generators and heads, as PyTorch's own layers, and their cross-entropies row by row."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from fedtune.core.trees import take
from fedtune.data.federation import Federation
from fedtune.experiment.algorithm import Batch, Model
from fedtune.nn.generators import new_net
from support.helpers import DIGITS, EARLY, client_draws, client_net, next_task, play, random_federation, simulate
from support.numbers import randn

Z, C, H, D = 5, 4, 7, 6
SHIFTS = {"in": 0, "norm": 1, "out": 3}  # a generator's layers, as positions in a Sequential


def module(net: dict[str, Tensor]) -> nn.Sequential:
    """The generator as PyTorch's own layers, in training mode, with the bias before BatchNorm held still."""
    hidden, width = net["in.weight"].shape
    layers = nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, len(net["out.bias"]))
    whole = nn.Sequential(*layers).double()
    values = {f"{SHIFTS[n.split('.')[0]]}.{n.split('.')[1]}": t.clone() for n, t in net.items()}
    whole.load_state_dict(values | {"1.num_batches_tracked": torch.zeros((), dtype=torch.long)})
    whole[0].bias.requires_grad_(False)
    return whole


def as_net(whole: nn.Sequential) -> dict[str, Tensor]:
    """The way back."""
    names = {str(i): part for part, i in SHIFTS.items()}
    state = {n: t.detach() for n, t in whole.state_dict().items() if "num_batches" not in n}
    return {f"{names[n.split('.')[0]]}.{n.split('.')[1]}": t for n, t in state.items()}


def slopes(whole: nn.Sequential) -> dict[str, Tensor]:
    """The gradients of what is trained, by the net's names, after `backward`."""
    names = ("in.weight", "norm.weight", "norm.bias", "out.weight", "out.bias")
    return {n: whole.get_parameter(f"{SHIFTS[n.split('.')[0]]}.{n.split('.')[1]}").grad for n in names}


def inputs(noise: Tensor, y: Tensor, classes: int = C) -> Tensor:
    return torch.cat([noise, torch.eye(classes, dtype=torch.float64)[y]], 1)


def fresh(seed: int = 0, heads: int = 1) -> dict[str, Tensor]:
    """A small float64 net with nothing at its start value."""
    net = new_net(Z, C, H, D, heads, seed)
    net = {n: t.double() + 0.3 * randn(*t.shape, seed=seed + i) for i, (n, t) in enumerate(net.items())}
    return net | {"norm.running_var": net["norm.running_var"].abs() + 0.2}


def two_clients() -> Federation:
    """Client 0 has 2 rows of each class, client 1 has 6 of class 0 and of class 1.

    Rows of a class add up to powers of two, so that shares are exact in any precision.
    """
    return random_federation([8, 12], [[0, 1, 2, 3], [0, 1]])


def labels(n: int, seed: int = 0) -> Tensor:
    return torch.randint(C, (n,), generator=torch.Generator().manual_seed(seed))


def heads(m: int, seed: int = 0, d: int = D) -> dict[str, Tensor]:
    return {"head.weight": randn(m, C, d, seed=seed), "head.bias": randn(m, C, seed=seed + 1)}


def cross_entropies(shared: dict[str, Tensor], h: Tensor, y: Tensor) -> np.ndarray:
    """[m, B], row by row."""
    out = np.zeros((len(shared["head.weight"]), len(h)))
    for k, (w, b) in enumerate(zip(shared["head.weight"].numpy(), shared["head.bias"].numpy(), strict=True)):
        for i, (row, c) in enumerate(zip(h.detach().numpy(), y.tolist(), strict=True)):
            logits = w @ row + b
            out[k, i] = np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[c]
    return out


def told_by(law: Tensor, u: Tensor) -> Tensor:
    """Labels of uniform numbers, by a law over classes of any scale."""
    mass = np.cumsum(law.numpy())
    return torch.as_tensor(np.searchsorted(mass, u.numpy() * mass[-1], side="right"))


def variational(net: dict[str, Tensor], noise: Tensor, xi: Tensor, y: Tensor, training: bool = True) -> tuple:
    """h, μ and ln σ² with PyTorch's own layers, and these."""
    whole = module(net).train(training)
    out = whole(inputs(noise, y))
    width = out.shape[1] // 2
    mu, logvar = out[:, :width], out[:, width:].clamp(-8, 4)
    return mu + torch.exp(logvar / 2) * xi, mu, logvar, whole


def features(net: dict[str, Tensor], eps: dict, which: str, y: Tensor) -> Tensor:
    """What a generator makes of a batch's noise, with PyTorch's own layers; FedGenP's are variational."""
    if "xi" in eps:
        return variational(net, eps[which], eps[{"noise": "xi", "latent": "latent_xi"}[which]], y, False)[0]
    return module(net).eval()(inputs(eps[which], y))


def loss_by_hand(net: Any, generator: dict, x: Tensor, y: Tensor, eps: dict, law: Tensor, a: float, b: float) -> Tensor:
    """A client's loss beside a generator with PyTorch's own layers; law over classes."""
    logits, told = net.head(net.body(x)), told_by(law, eps["label"])
    with torch.no_grad():
        made = features(generator, eps, "noise", told)
        target = net.head(features(generator, eps, "latent", y)).softmax(1)  # a constant: nothing flows into it
    divergence = (target * (target.log() - logits.log_softmax(1))).sum(1).mean()
    return F.cross_entropy(logits, y) + a * F.cross_entropy(net.head(made), told) + b * divergence


def at_work(name: str, **config: Any) -> tuple[Any, Model, Batch, dict, nn.Module]:
    """Client 1 of two with what it received in round 2 and one batch, and its net."""
    sim = simulate(name, DIGITS, two_clients(), **EARLY[name], **config)
    play(sim, 1)
    alg, steps, f = sim.setup.algorithm, client_draws(sim, 2, 1), sim.setup.federation
    rows = steps.rows[0, 0]
    batch = Batch(f.x[rows], f.y[rows], {n: e[0, 0] for n, e in steps.eps.items()})
    down = take(alg.broadcast(sim.state.server, torch.tensor([1]), next_task(sim)), 0)
    return alg, Model(sim.state.groups[0].net, sim.state.server["shared"]), batch, down, client_net(sim, 1)


def assert_far(row: dict, made: Sequence[Tensor], y: Tensor) -> None:
    """The columns of quality: mean distances of generated features of the same class, and of others."""
    alike, found = (y[:, None] == y).numpy(), []
    for h in made:
        far = np.linalg.norm(h[:, None].numpy() - h.numpy(), axis=2)
        found.append([far[alike & ~np.eye(len(y), dtype=bool)].mean(), far[~alike].mean()])
    want = np.mean(found, axis=0).tolist()  # cdist multiplies matrices, hence the tolerance
    assert_close([row["generated_intra"], row["generated_inter"]], want, rtol=0, atol=1e-7)
