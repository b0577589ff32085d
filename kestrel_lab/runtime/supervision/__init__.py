"""Supervision of dependencies: health, circuit breakers, rate limits, retries."""
