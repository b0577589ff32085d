"""Results of a team on one PostgreSQL server: pushed from and pulled to the logs of its members."""
