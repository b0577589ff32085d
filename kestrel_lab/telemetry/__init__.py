"""Runs as OpenTelemetry spans, and their export."""
