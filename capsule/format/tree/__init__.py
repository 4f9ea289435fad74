"""The tree of a conversation: branches, the active one, and the removal of branches."""
