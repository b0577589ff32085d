"""Models behind litellm: calls, errors, sources of a web search."""
