"""What git knows of a conversation's past."""
