"""Commands about recorded runs: scans, clusters, alignment."""
