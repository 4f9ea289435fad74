"""Workers that messages wake: sessions, each of two files, and the host that stands between them
and the world.
"""
