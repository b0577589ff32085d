"""Recordings of other tools as runs and trials; public data as frames."""
