"""What stands in documents: heads, messages, members, agents, channels, servers."""
