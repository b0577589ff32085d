"""Cassettes: recorded answers of models, replayed without keys or network."""
