"""FedEnsemble: FedAvg that predicts with the ensemble of the clients' models instead of the averaged model.

    client, up, server   as FedAvg
    scored               argmax of Σ_k logits_k(x) over the clients' models w_k of the last round

A baseline in the tables of FedGen, FedPA and FedGenP, after their code.  It trains exactly as FedAvg does.  It is not
the algorithm of Shi et al. (arXiv:2107.10663) or of Lin et al. (arXiv:2006.07242), which these papers cite.

Differs from that code: the members of the ensemble are the participants of the last round.  In the code, and with
members="all", every other client votes with the model that the server sent out in that round.  If running statistics
are personal, these votes use the first member's, where the code uses each client's own.

The ensemble stays on the server, so it does not count as sent.  Before the first round, the initial model predicts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtune.core.trees import Tree, join, take, to_all
from fedtune.experiment.algorithm import Algorithm, Data, Model, Task, hyper, part_of
from fedtune.trainables._released import CLIENTS


@dataclass(frozen=True)
class FedEnsemble(Algorithm):
    """FedEnsemble as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "single"
    unlike_text = "it is the baseline in FedGen's code, not a paper's algorithm"

    members: str = hyper(
        "participants",
        choices=("participants", "all"),
        help="whose models vote: this round's participants, or all clients",
    )
    average: str = hyper(
        "logits",
        choices=("logits", "probabilities"),
        help="what the vote averages: the models' logits, or their probabilities",
    )

    shared = ("body", "head")
    scored_model = "the ensemble of the last round's models (average: the averaged model)"
    contrasts = {"members": ("participants", "all", {"participation": 0.5})}
    presets = {"as_published": CLIENTS | {"members": "all"}}

    def upload(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """Running statistics that are not averaged: without them a member cannot predict on the server."""
        parts = {part_of(n) for n in down["shared"]}
        own = {n: m[n] for n, _ in m.net.named_buffers() if part_of(n) in parts and n not in down["shared"]}
        return {"statistics": own} if own else {}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict[str, Tree]:
        """FedAvg; and the received models, each with its number of votes."""
        models = up["shared"] | up.get("statistics", {})
        votes = torch.ones(len(up["rows"]), device=up["rows"].device)
        if self.members == "all" and len(votes) < task.clients:
            # statistics of the others are not on the server: they vote with the first member's
            received = {n: server["shared"].get(n, t[0])[None] for n, t in models.items()}
            models = join([models, received])
            votes = torch.cat([votes, votes.new_tensor([task.clients - len(votes)])])
        return super().aggregate(server, up, task) | {"members": models, "votes": votes}

    def deployed(self, server: dict, ids: Tensor, task: Task) -> dict[str, Tree]:
        """The members, for every client that predicts."""
        members = {n: server[n] for n in ("members", "votes") if n in server}
        return self.broadcast(server, ids, task) | to_all(members, len(ids))

    def predict(self, m: Model, x: Tensor, down: dict) -> dict[str, Tensor]:
        """The members' mean; the averaged model is logged too."""
        single = m.head(m.body(x))
        if "members" not in down:
            return {"ensemble": single, "average": single}

        mean = torch.zeros_like(single)
        for i, share in enumerate(down["votes"].to(x) / down["votes"].sum()):  # a stack of stacks is 2 times slower
            one = Model(m.net, m.tensors | take(down["members"], i))  # a frozen part is everybody's
            logits = one.head(one.body(x))
            mean = mean + share * (logits if self.average == "logits" else logits.softmax(1))
        return {"ensemble": mean if self.average == "logits" else mean.clamp(min=1e-30).log(), "average": single}
