"""Runs plans: the agent loop, approvals, limits, resume."""
