"""The commands, a module for those that share a subject."""
