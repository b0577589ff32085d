"""The events of a run, by what they are about, and their union."""
