"""Notes that outlive a run: kept beside the log, found by what they are about, forgotten when they are to be."""
