"""The index of a folder: which files, their chunks, definitions, imports and history."""
