"""What is thrown at the commands, and the law that they answer by: `python -m tests.fuzz --minutes N`."""
