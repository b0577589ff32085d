"""What happens around a call, one idea per file, the same shape for models and tools.

A tool call passes, from the outside in: `record` (the answer is an event, whatever happened) → the user's →
`cache` → `approval` → `order` (its place in the turn) → `timeout` → `intent` (the event that says it begins,
on disk before an effect can happen) → the tool.
"""
