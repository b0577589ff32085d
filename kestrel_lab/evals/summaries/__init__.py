"""Summaries of trials: tables, breakdowns, Pareto front, calibration."""
