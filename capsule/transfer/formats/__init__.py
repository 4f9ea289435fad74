"""The formats, a module each, in the folders of what has them.

What must stay true: each is pure, and is reached through `capsule.transfer.registry` only. All are
imported together, so their patterns are texts: `re` compiles one when it is first used.
"""
