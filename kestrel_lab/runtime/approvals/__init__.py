"""Approvals: decisions on calls, their scope, and undo."""
