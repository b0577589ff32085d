"""Notebooks executed headless, and made of the code that runs executed."""
