"""What is trained: the abstraction of an algorithm, settings, and the experiment made of both."""
