"""Waiting for changes: the thread that watches the files, streams of changes, and the marks on own
writes.
"""
