"""The small local model and its server."""
