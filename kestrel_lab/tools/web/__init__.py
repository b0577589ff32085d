"""Reaching the web: addresses that may be reached, one guarded way to ask them, and the tools on top."""
