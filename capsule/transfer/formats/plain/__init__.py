"""What people and tools read: capsules, pages, lines."""
