"""Command lines of a shell as programs with options: parsed, compared, and filled with values that stay data."""
