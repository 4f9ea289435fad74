"""The programs that use the MCP server: where their settings are, how these are edited, and whether
an entry works.
"""
