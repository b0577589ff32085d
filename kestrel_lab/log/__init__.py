"""The event log: one SQLite file per project that nothing acknowledged is ever lost from."""
