"""The words a person types: one definition for the terminal and for the notebook's `%kestrel`."""
