"""Acceptance, measured: real speculative decoding with the exported draft and with baselines, and its statistics."""
