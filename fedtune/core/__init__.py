"""What everything else stands on: errors, hyperparameters, randomness, trees of tensors, statistics."""
