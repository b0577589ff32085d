"""Tools of MCP servers: their configuration, what of them is approved, the connections."""
