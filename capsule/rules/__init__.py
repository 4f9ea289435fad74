"""The rules of reading, writing, locking and messaging: pure functions, without files or clocks."""
