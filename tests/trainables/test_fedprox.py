"""FedProx: two steps and the penalty by hand."""

from support.by_hand import assert_means_of_steps, distance
from support.helpers import DIGITS, own_rows, random_federation, simulate
from support.numbers import TIGHT, randn
from torch import Tensor, nn
from torch.testing import assert_close

from fedtune.experiment.algorithm import Batch, Model
from fedtune.experiment.scenario import Scenario
from fedtune.trainables.fedavg import FedAvg
from fedtune.trainables.fedprox import FedProx


def test_the_second_step_is_pulled_back_by_mu_times_the_distance() -> None:
    sim = simulate("fedprox", DIGITS, random_federation([6, 9]), mu=0.7, lr=0.1, momentum=0.0, local_steps=2)

    def loss(_k, net, received, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(net(x), y) + 0.35 * distance(net, received.state_dict())

    assert_means_of_steps(sim, 2, loss)


def test_the_penalty_is_half_mu_times_the_squared_distance_of_the_parameters_alone() -> None:
    sim = simulate("fedprox", Scenario(model="fedgen-cnn", features=8), random_federation([6]))
    net, shared = sim.state.groups[0].net, sim.state.server["shared"]
    moved = {
        n: t + 0.1 * randn(*t.shape, seed=i) if t.is_floating_point() else t + 5
        for i, (n, t) in enumerate(shared.items())
    }
    batch = Batch(*own_rows(sim, 0), {})
    net.eval()
    plain, prox = (alg.loss(Model(net, moved), batch, {"shared": shared}) for alg in (FedAvg(), FedProx(mu=0.6)))
    apart = sum(((moved[n] - shared[n]) ** 2).sum() for n, _ in net.named_parameters())
    assert {n for n, _ in net.named_parameters()} < set(moved)  # running statistics are not pulled
    assert_close(prox - plain, 0.3 * apart, **TIGHT)
