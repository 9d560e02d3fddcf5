"""The laboratory: the abstraction of an algorithm, and the engine that trains its clients."""
