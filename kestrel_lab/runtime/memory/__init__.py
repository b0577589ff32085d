"""Memory of runs: note tools, learning from a run, and mined macros."""
