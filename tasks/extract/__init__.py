"""The target's hidden states for every training sequence, and a probe that shows they are the right ones."""
