"""The engine that keeps documents in memory, for tests and for stores that nobody keeps."""
