"""Messages: sent, heard, read."""
