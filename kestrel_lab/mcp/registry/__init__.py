"""MCP servers that can be had: the catalogue, registries, scoring and installation."""
