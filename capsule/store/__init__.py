"""The Store, and the objects that it offers."""
