"""The rules: who may read, write, lock and message what. Pure functions, without files, clocks or
stores.
"""
