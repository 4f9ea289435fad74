"""The commands that bring conversations in and out."""
