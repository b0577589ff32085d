"""Stored trials: judged anew, summarised, calibrated, without running anything."""
