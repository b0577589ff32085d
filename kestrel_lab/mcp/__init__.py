"""MCP servers: configuration, approval, transport and connection."""
