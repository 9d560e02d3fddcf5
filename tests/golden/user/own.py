"""Algorithms, a metric and spaces as a user's files have them."""

from dataclasses import dataclass

from ray import tune

from fedtune import Algorithm, Phase, hyper, when


@dataclass(frozen=True)
class Pull(Algorithm):
    """FedAvg whose clients are pulled towards what they received, and whose server moves only a part of the way."""

    mu: float = hyper(0.1, 1e-3, 1.0, log=True, help="weight of the pull")
    step: float = hyper(0.8, 0.1, 1.0, help="share of the way")

    shared = ("body", "head")

    def phases(self, task):
        return (Phase(self.loss, clip=10.0),)

    def loss(self, m, batch, down):
        pull = sum(((m[name] - was) ** 2).sum() for name, was in down["shared"].items())
        return super().loss(m, batch, down) + self.mu / 2 * pull


@dataclass(frozen=True)
class Fragile(Algorithm):
    """FedAvg that diverges where its loss is multiplied by too much."""

    factor: float = hyper(1.0, 1.0, 1e30, log=True, help="of the loss")

    shared = ("body", "head")

    def loss(self, m, batch, down):
        return self.factor * super().loss(m, batch, down)


def first_class(scores, y):
    """The share of the rows of class 0 that are found."""
    of = y == 0
    return (scores.argmax(1) == y)[of].double().sum() / max(1, int(of.sum()))


SPACE = {
    "mu": tune.loguniform(0.001, 1.0),
    "optimizer": tune.choice(["sgd", "adam"]),
    "momentum": when(tune.uniform(0, 0.9), optimizer="sgd"),
    "lr": tune.loguniform(0.003, 0.1),
}
GRID = {"mu": tune.grid_search([0.01, 1.0]), "lr": tune.grid_search([0.01, 0.05])}
