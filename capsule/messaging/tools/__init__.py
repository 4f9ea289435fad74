"""What messaging adds to the MCP server: its tools, and how a client hears of messages besides."""
