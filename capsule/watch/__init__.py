"""Waiting for changes: one thread that hears of them, streams of them, and a program's own writes left out."""
