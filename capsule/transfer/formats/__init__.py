"""The formats, a module each.

What must stay true: each is pure, and is reached through `capsule.transfer.registry` only.
"""
