"""The corpus: audited sequences, shuffled and split, and the draft vocabulary that is counted from them.

Everything here depends on the ids alone; hidden states are left to extract.
"""
