"""The Store, and what it offers, a module each."""
