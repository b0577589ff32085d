"""Published benchmarks as suites."""
