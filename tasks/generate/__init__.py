"""The target answers the training prompts."""
