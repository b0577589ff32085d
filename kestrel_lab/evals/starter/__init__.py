"""A first suite for a folder: what `kestrel init` writes."""
