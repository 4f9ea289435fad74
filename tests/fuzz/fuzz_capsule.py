"""Fuzzing of a capsule's file, guided by coverage. Run it by hand, with atheris installed (`pip
install atheris`).

    python -m tests.fuzz.fuzz_capsule [-max_total_time=600] [CORPUS_DIRECTORY]

It ends at the first input that breaks a promise of `tests/fuzz/bytes.py`, and writes it to
`crash-...`.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path


def main() -> None:
    try:
        import atheris  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        sys.exit("atheris is not installed here: pip install atheris")
    with atheris.instrument_imports(include=["capsule"]):
        from tests.fuzz.bytes import StoreOfBytes
    logging.getLogger("capsule").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as directory:
        target = StoreOfBytes(Path(directory) / "store")
        atheris.Setup(sys.argv, target.try_bytes)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
