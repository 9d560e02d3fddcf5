"""One thread: the suite's tensors are tiny, and sums come out in the same order everywhere."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))  # for helpers
torch.set_num_threads(1)
