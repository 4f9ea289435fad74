"""`capsule`, and `python -m capsule_cli`. Plain commands run before typer is loaded."""

from __future__ import annotations

import atexit
import gc
import os
import sys


def main() -> None:
    """Run `capsule` with the words of the command line. Never returns."""
    # Garbage collections, during the imports and at the end of the process, take a tenth of the
    # time of a short command.
    gc.set_threshold(20_000)
    atexit.register(gc.freeze)
    if ":/" in os.environ.get("CAPSULE_STORE", ""):
        from capsule.locate import hide_password

        hide_password()
    from capsule_cli import fast_path

    fast_path.run(sys.argv[1:])
    from capsule_cli import app

    app.main()


if __name__ == "__main__":
    main()
