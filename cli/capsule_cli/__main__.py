"""`capsule`, and `python -m capsule_cli`. A client's hook is answered, and a worker runs, before typer is loaded."""

from __future__ import annotations

import sys

from capsule import rooms
from capsule.errors import Refused


def main() -> None:
    """Run `capsule` with the words of the command line; never returns."""
    words = sys.argv[1:]
    for word in words[:3]:
        try:
            room = rooms.of_command(word)
        except Refused:  # Typer's program reports it.
            break
        if room and word in room.quick and (code := rooms.load(room.quick[word])(words)) is not None:
            sys.exit(code)
    from capsule_cli import app

    app.main()


if __name__ == "__main__":
    main()
