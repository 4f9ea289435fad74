"""The chats of web pages."""
