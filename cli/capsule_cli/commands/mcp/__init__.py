"""The commands of `capsule mcp` and `capsule mcp tokens`."""
