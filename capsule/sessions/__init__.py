"""Workers that messages wake: sessions, each of two files, and the host that connects them with
channels.
"""
