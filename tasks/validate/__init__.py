"""Validation: every rule that a sequence must keep is one named check; a gate stops the flow when too many rows fail.

What the rules let pass goes on unchanged. Where the ids come from is left to reconstruct.
"""
