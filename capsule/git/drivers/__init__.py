"""The programs that git starts: the filter, the merge driver, the check before a commit."""
