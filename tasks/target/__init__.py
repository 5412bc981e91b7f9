"""The target: the model that is served. Found and checked once, then loaded by every step that asks it."""
