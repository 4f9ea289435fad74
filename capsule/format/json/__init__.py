"""JSON as the store writes it: bytes, layout, the order of keys, lines and columns."""
