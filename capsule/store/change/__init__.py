"""One change of one conversation: below the Store, its locks and its watchers."""
