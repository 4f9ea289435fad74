"""The pages, a module each: each parses a request, makes a call of the Store, and renders a
template.
"""
