"""Persistence: every task result is a Parquet file in the store, found again by content, verified at every hit.

Knows nothing of what a step computes. `task.py` has the decorator, `artifact.py` the two kinds of result.
"""
