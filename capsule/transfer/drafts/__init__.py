"""Drafts as capsules and back, and what an import does to a conversation that is there."""
