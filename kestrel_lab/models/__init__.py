"""Models that answer requests: hosted ones, a local one, and wrappers that add retries or tool calling."""
