"""State of a kernel besides variables: how it was, what changed, how to restore it."""
