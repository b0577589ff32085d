"""Taint tracking, containment and provenance of arguments."""
