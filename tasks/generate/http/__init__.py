"""Answers over HTTP: requests in each server's dialect, sent with manners.

What is asked, and what may be paid for it, is decided above.
"""
