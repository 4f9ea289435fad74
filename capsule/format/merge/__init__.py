"""The merging and comparing of versions of documents. Pure."""
