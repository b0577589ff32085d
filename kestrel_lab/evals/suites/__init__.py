"""Suites as people write them: loading, datasets, checkouts."""
