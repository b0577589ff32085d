"""The review of an answer before it is given."""
