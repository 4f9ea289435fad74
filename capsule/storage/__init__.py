"""Bytes on disk: replace, splice, rehead, repair, mutex, instance files. Knows no conversation."""
