"""The commands of `capsule mcp` and `capsule tokens`."""
