"""Reconstruction: from answers as an engine returned them to the exact ids that the model sampled, or quarantine.

Ids that were returned are never encoded again from text. Ids rebuilt from text are believed only if their number is the
one that was billed. Needs neither torch nor transformers.
"""
