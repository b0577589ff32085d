"""`kestrel eval …` and what is measured beside it."""
