"""Prompts: reads every dataset of the recipe into one table of messages, without duplicates or benchmark questions.

A row that cannot be used is quarantined with its reason; rendering and tokens are left to the engines.
"""
