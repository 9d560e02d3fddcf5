"""A program that appends its figures to fedtune's file, with every digit."""

import math
import os

from fedtune import report

decay, optimizer, momentum = float(os.environ["DECAY"]), os.environ["OPTIMIZER"], float(os.environ["MOMENTUM"])
weight = 1.0
for i in range(int(os.environ["ROUNDS"])):
    weight = weight * (1 - decay) - (momentum if optimizer == "sgd" else 0.1) / (i + 3)
    report(round=i + 1, val_loss=1 + math.sin(weight) + decay, test_acc=1 / (1 + math.exp(weight)))
