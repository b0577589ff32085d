"""Transcripts: runs as their steps, aligned with each other."""
