"""Ranges that a family of algorithms shares, declared once; what all share is in `fedtune.tuning.shared`."""

from typing import Any

# FedGen, FedPA, FedGenP: a server that trains generators.  gen_lr goes no higher than Adam's rates usefully do
GENERATOR: dict[str, Any] = {"gen_lr": (1e-5, 1e-2), "gen_steps": (5, 200)}
# CCVR, FedPFT: a server that fits a head to draws, by AdamW.  Their first spaces, for plain SGD, were cut: tuned values
# lay at the ends (head_lr 0.97 of 1, draws 500 of 500)
HEAD: dict[str, Any] = {"head_lr": (1e-4, 0.1), "head_epochs": (1, 20)}
