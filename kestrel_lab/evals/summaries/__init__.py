"""Summaries of trials: tables, breakdowns, Pareto front, recall."""
