"""The tables of the index: which there are, and how each is filled."""
