"""Rules about calls: which tool with which arguments is allowed, asked about or refused, whatever its danger."""
