"""Memory: notes that outlive a run, stored in the database of the log, with their search and deletion."""
