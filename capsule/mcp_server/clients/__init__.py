"""The programs that use the MCP server: where they look for it, how their settings are edited, and
whether it works.
"""
