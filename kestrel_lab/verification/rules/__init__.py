"""The rules that hold an answer against the workspace and the log."""
