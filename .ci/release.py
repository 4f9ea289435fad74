"""Makes the source distribution and the wheel of the commit that is checked out, and their
SHA256SUMS, in dist/.

What must stay true: a commit gives the same bytes on every machine with the tools of
constraints.txt. What is not committed is not in them.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Make dist/ anew."""
    os.umask(0o022)  # A wheel has the permissions of its files.
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    epoch = int(_git("log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory() as source:
        with tarfile.open(fileobj=io.BytesIO(_git("archive", "--format=tar", "HEAD"))) as archive:
            archive.extractall(source, filter="data")
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), source]
        done = subprocess.run(
            command,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(dist.iterdir())
    ]
    (dist / "SHA256SUMS").write_text("".join(sums), encoding="ascii")
    print("".join(sums), end="")
    if _git("status", "--porcelain"):
        print("what is not committed is not in them", file=sys.stderr)


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout


if __name__ == "__main__":
    main()
