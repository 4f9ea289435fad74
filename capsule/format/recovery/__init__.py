"""The recovery of a conversation: records of the log, external edits, torn files."""
