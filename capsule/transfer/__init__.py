"""Bringing conversations in and out: formats, and what reads and writes the store by them.

What must stay true: a format is known in its own module and nowhere else. `registry` finds the
modules, and those that other packages add.
"""
