"""Static HTML of runs and tables."""
