"""Which algorithms and settings a part of the round takes, by what the server uses, and why not others."""

from __future__ import annotations

from collections.abc import Iterator

from fedtune.core.errors import Unfit, UserError
from fedtune.experiment.algorithm import Algorithm, part_of
from fedtune.experiment.scenario import Scenario
from fedtune.experiment.terms import NetStructure

_USES = ("init", "broadcast", "upload", "round", "aggregate")  # methods that decide what the server uses
# releases -> what privacy of clients cannot bound
_UNBOUNDED = {
    "means": "takes several means, or weighs clients by numbers that their own rows decide",
    "single": "uses single clients' models, each of which would need noise of its own",
    "classes": "gets statistics of rows per class, whose size one client's rows decide without a bound",
}


def releases(cls: type[Algorithm]) -> str:
    """How the server uses what clients send: as declared, unless a subclass has methods of its own that decide it."""
    base: type[Algorithm] = next(c for c in cls.__mro__ if vars(c).get("releases") or c is Algorithm)
    if any(getattr(cls, name) is not getattr(base, name) for name in _USES):
        return "single"
    return base.releases or ("mean" if cls.shared else "nothing")


def require(name: str, alg: Algorithm, scenario: Scenario, forms: tuple[NetStructure, ...]) -> None:
    """UserError with the first reason for which a part that is on does not take this setting; Unfit: this algorithm."""
    if scenario.privacy == "client":
        for why in unfit_for_privacy(name, alg):
            raise Unfit(f"privacy=client {why}")
        for why in _of_privacy(alg, scenario, forms):
            raise UserError(f"privacy=client {why}")
    for why in _of_codec(name, alg, forms[0]) if scenario.compress not in ("none", "fp16", "int8") else ():
        raise Unfit(f"compress={scenario.compress} {why}; use fp16 or int8, which take all messages, or fedavg, …")


def unfit_for_privacy(name: str, alg: Algorithm) -> Iterator[str]:
    """Reasons for which an algorithm's clients cannot be private, whatever the setting."""
    if what := _UNBOUNDED.get(releases(type(alg))):
        rule = "needs a server that uses clients' models through one plain mean and nothing else"
        yield f"{rule}, but {name}'s server {what}; use one of fedavg, fedprox, fedadam, moon, fedrep, …"
    if type(alg).observe is not Algorithm.observe:
        yield f"takes no algorithm whose server sees scores, which are data, but {name} has `observe`"


def _of_privacy(alg: Algorithm, scenario: Scenario, forms: tuple[NetStructure, ...]) -> Iterator[str]:
    """Reasons for which noise on the mean of clipped updates would not make everything private that is released."""
    if scenario.averaging == "rows" and alg.shared:
        yield "averages over clients, as a client's rows are data, but got averaging=rows; leave it out"
    sent = scenario.sent(alg.shared)
    if (
        any(part_of(n) in sent for form in forms for n in form.buffers - form.stays)
        and scenario.batch_norm != "personal"
    ):
        yield "would release running statistics, which are means of rows; use batch_norm=personal, or resnet8-gn"
    if scenario.sampling == "fixed" and scenario.participation < 1:
        yield (
            f"needs chance in who takes part, but sampling=fixed always takes {scenario.participants} of "
            f"{scenario.clients} clients, and ε would be several times larger; use sampling=poisson, or participation 1"
        )


def _of_codec(name: str, alg: Algorithm, form: NetStructure) -> Iterator[str]:
    """Reasons for which clients have no update that could be sent shorter; what sends nothing takes any codec."""
    if not alg.shared and releases(type(alg)) != "nothing":
        yield f"shortens updates of shared parameters, but {name}'s clients send other messages"
    shared = {n for n in form.shapes if part_of(n) in alg.shared and n not in form.unsent}
    if shared and shared <= form.stays:
        yield f"needs a model that clients received, from which their updates count, but {name} gives them none"
