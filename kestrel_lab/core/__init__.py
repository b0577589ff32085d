"""Frozen data and Protocols that every other layer speaks; nothing here reads a file or the network."""
