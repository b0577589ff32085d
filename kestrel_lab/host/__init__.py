"""Access to the machine: git, programs, the user and imports, safe from files in a workspace."""
