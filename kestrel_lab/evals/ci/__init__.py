"""Suites on build servers: reports, and comments on pull requests."""
