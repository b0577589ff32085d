"""Checks: small frozen judges of a finished run, each of which forms one `Score`."""
