"""Memory as a run uses it: notes, learning, proposals of macros."""
