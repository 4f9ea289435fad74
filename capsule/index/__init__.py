"""The index: what lists, searches and followers of changes ask, derived from the files and deletable at any moment."""
