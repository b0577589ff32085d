"""The shell tool: processes, their environment and output."""
