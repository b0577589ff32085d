"""Studies: prompt injection."""
