"""State of a kernel beside the values of variables: what it was, what changed, how it is put back."""
