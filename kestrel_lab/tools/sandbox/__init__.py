"""Sandbox: levels that limit what an agent's programs can reach, each probed before use."""
