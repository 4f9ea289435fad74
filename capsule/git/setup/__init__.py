"""Setting a clone up for conversations, and its status."""
