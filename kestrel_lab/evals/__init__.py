"""Suites of scenarios run over configurations and commits, measured, and compared with honest statistics."""
