"""Commits compared: worktrees, interleaved trials, history, bisection."""
