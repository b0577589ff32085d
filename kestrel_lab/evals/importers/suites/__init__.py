"""Suites of other tools, read and written as suites of ours; nothing of them is run."""
