"""Engines in environments of their own: where each is installed, and servers that run while a task needs them."""
