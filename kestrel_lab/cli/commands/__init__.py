"""The commands of `kestrel` and `%kestrel`, by topic."""
