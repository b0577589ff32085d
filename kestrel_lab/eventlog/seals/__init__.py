"""What notices that a log, an event or a result is not what was written: hashes in a chain, heads, marks."""
