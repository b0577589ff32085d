"""Supervision of dependencies: health, circuit breakers, concurrency, retries."""
