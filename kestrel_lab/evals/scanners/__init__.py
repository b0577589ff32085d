"""Scanners: functions and models that look through runs for one thing each."""
