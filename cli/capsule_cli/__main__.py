"""`capsule`, and `python -m capsule_cli`. A client's hook is answered, and a worker runs, before typer is loaded."""

from __future__ import annotations

import sys

from capsule_cli.commands.messaging import hook as hooks


def main() -> None:
    """Run `capsule` with the words of the command line; never returns."""
    words = sys.argv[1:]
    if words[:3] == hooks.WORDS and (asked := hooks.parsed(words[3:])):
        sys.exit(hooks.run(*asked))
    if "worker" in words[:3]:
        from capsule_cli.commands.sessions import running as worker

        if options := worker.parsed(words):
            sys.exit(worker.main(options))
    from capsule_cli import app

    app.main()


if __name__ == "__main__":
    main()
