"""Suites, logs and data of others, read into frames and scenarios."""
