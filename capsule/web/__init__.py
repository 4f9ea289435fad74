"""A page in the browser to read, follow and answer in: a door to the Store, beside the two of the
core.
"""
