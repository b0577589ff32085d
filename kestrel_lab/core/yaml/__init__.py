"""YAML read strictly, validated with line and column, and written."""
