"""The tables of the index, and the modules that fill and query them."""
