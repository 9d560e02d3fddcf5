"""Ranges that a family of algorithms shares, declared once; what all share is in `fedtune.tuning.shared`."""

from typing import Any

# FedGen, FedPA, FedGenP: a server that trains generators.  gen_lr goes no higher than Adam's rates usefully do
GENERATOR: dict[str, Any] = {"gen_lr": (1e-5, 1e-2), "gen_steps": (5, 200)}
