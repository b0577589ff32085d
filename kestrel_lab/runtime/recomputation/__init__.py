"""Recomputation: the Python code of a conversation runs again, without a model, and its outputs are compared."""
