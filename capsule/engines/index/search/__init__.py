"""Search: the query, the words of the messages, the ranking, the snippets."""
