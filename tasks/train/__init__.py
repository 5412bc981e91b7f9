"""Training: the draft's first weights, the training-time test, the loop and its checkpoints."""
