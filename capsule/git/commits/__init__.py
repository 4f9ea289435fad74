"""Commits of a store, and their exchange with a remote."""
