"""Layers around a call, one per file, with the same shape for models and tools.

A tool call passes, from the outside in: `record` (the answer becomes an event in any case), the user's
layers, `cache`, `approval`, `order` (its place in the turn), `timeout`, `intent` (the event that it starts,
on disk before any effect), and the tool.
"""
