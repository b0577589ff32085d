"""Command line: one definition of commands for the terminal and for the notebook's `%kestrel`."""
