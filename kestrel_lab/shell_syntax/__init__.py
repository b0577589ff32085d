"""Shell command lines: parsing, comparing, and filling in values that stay data."""
