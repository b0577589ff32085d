"""Execution of trials: preparation, running, reuse, resume, Dask."""
