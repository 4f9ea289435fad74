"""The contents of documents: heads, messages, members, agents, channels, servers."""
