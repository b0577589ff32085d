"""Macros: sequences of calls that are one call."""
