"""Freed memory is kept where the C library can keep it, and given back when asked."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_kept_memory_can_be_given_back() -> None:
    """In a process of its own: what a run freed is gone from the process after it."""
    code = """
import torch
from pathlib import Path
from fedtune.core.memory import give_back_memory, keep_freed_memory

def held():
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) / 1024

if keep_freed_memory():
    before, blocks = held(), [torch.ones(1_000_000) for _ in range(100)]
    pin = torch.ones(100)  # on top of them
    del blocks
    kept = held() - before
    give_back_memory()
    assert kept > 300 and held() - before < 50, (kept, held() - before)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
