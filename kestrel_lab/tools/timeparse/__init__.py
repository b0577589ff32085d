"""Time expressions read, counted on and moved between zones: every reading says how it was read, what is not sure is refused."""
