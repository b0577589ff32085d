"""Models behind litellm: the library, calls, responses, cost, errors, sources of a web search."""
