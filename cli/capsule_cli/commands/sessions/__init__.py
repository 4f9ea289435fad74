"""The commands of sessions: workers that messages wake, and the host between them and the world."""
