"""Merging documents: three versions into one, and a file with the records of its log. Pure."""
