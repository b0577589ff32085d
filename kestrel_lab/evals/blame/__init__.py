"""Blame and shrink: which step made a run fail, and the least that still fails, both by re-running forks."""
