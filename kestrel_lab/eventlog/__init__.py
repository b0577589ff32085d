"""The event log: one SQLite file per project; nothing that was acknowledged is ever lost from it."""
