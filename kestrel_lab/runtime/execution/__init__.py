"""Execution of plans: scheduler, steps, stages, artifacts."""
