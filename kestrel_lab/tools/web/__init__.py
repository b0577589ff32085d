"""Web access: allowed addresses, one guarded HTTP client, and the tools on top."""
