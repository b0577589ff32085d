"""Approvals: who decides a call, and what a decision covers."""
