"""Conversations: runs that go on where another one ended."""
