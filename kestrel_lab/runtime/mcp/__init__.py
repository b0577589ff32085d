"""MCP servers of a session: start, health, expansion during a run."""
