"""Recorded steps: PyTorch's operations of a step, run again without the Python around them."""
