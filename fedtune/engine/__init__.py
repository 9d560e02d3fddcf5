"""How it is trained: rounds, clients one after the other or as one program, states, evaluation."""
