"""Instance locks: the rule, the holder of a lock, and what keeps it fresh."""
