"""Token formats: how each family of models writes an answer in ids. Shared by generate, reconstruct, validate, corpus.

Needs neither torch nor transformers.
"""
