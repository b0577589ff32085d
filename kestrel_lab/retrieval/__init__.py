"""Search in a folder: a file index, three retrievers, and a cascade that traces its steps."""
