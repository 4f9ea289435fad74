"""The MCP server: the door through which AI agents use a store. Imported only by what serves it."""
