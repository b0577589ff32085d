"""Stored trials: rescored, summarised, calibrated, without running anything."""
