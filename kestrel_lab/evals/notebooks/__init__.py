"""Notebooks executed headless."""
