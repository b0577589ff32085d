"""Workflow and agent files: read, checked, and compiled to plans."""
