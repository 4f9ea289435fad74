"""JSON as the store writes it: bytes, lines, the order of keys, and where things stand."""
