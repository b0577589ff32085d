"""What the prose of an answer asserts."""
