"""Reconstruction: from answers as an engine returned them to the exact ids that the model sampled, or quarantine.

Never a guess that looks right: nothing is encoded again from text where ids were returned.
"""
