"""The command line of Capsule: parse, one call to the Store, render.

What must stay true: no rule about conversations lives here, and nothing heavy is imported before a
command needs it: a plain command runs without typer, and `capsule --version` starts about as fast
as typer itself.
"""
