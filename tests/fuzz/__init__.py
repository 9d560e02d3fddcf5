"""What is thrown at the commands, and the rule that they answer by: `python -m tests.fuzz --minutes N`."""
