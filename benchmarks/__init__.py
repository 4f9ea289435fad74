"""Measurements of the store, side by side with what one would use instead. Run: python -m
benchmarks.
"""
