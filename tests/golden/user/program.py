"""A program that prints a line a round, as somebody's training script does."""

import argparse
import random

parser = argparse.ArgumentParser()
for name, kind in {"lr": float, "layers": int, "rounds": int, "seed": int}.items():
    parser.add_argument(f"--{name}", type=kind)
given = parser.parse_args()
noise = random.Random(given.seed)
for i in range(given.rounds):
    accuracy = max(0, 0.9 - abs(given.lr - 0.1) - 0.02 * abs(given.layers - 3) - 0.3 / (i + 1) + noise.gauss(0, 0.01))
    print(f"round {i + 1}: validation accuracy {100 * accuracy:.6f}, test accuracy {accuracy - 0.02:.6f}", flush=True)
