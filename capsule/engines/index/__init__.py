"""The index of all conversations in SQLite: lists, pages, search and the journal of changes."""
