"""The engine that keeps documents in PostgreSQL, for stores that several machines use."""
