"""Prompts: reads every dataset of the recipe into one table of turns to regenerate, apart from the benchmarks.

The way of a row: locate and records/hub (bytes), adapters (a script without the dataset's own answers), conversation
(turns and their ids), gather (duplicates, benchmarks, limits), selection (order and shards). A row that cannot be used
is quarantined whole with its reason; rendering, tokens and answers are left to later steps.
"""
