"""Runs of benchmarks and of their harnesses, one file each."""
