"""Sets up what comes from npm: a Node 22 of our own, and the packages that Capsule is tested
against.

What must stay true: a folder's `package.json` pins every version exactly and its
`package-lock.json` every version below those; what is installed is exactly that, under `.node/`,
which git ignores; it is installed anew only when one of the two changed. No registry is named: npm
is asked, and uses the one its user has set.

    python tests/node/ensure.py [FOLDER]     installs FOLDER's package.json (this folder's by default)
    python tests/node/ensure.py --lock       writes the lock files anew, after a package.json was edited

From Python: `ensure()` for the Node and the packages of this folder, `ensure(folder)` for those of
another. `Unavailable` is raised where nothing here is wrong, but npm or its registry can't be had:
the caller skips, by name. Any other trouble raises `RuntimeError`, and must fail.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PLACE = ROOT / ".node"
#: Seconds that one installation may take: npm retries for minutes where there is no network.
TIMEOUT_S = 90
#: What the command line exits with when npm can't be had (EX_TEMPFAIL).
UNAVAILABLE = 75

_PINNED = ("package.json", "package-lock.json", ".npmrc")
# What npm says of a network or registry that doesn't answer or doesn't have it, as opposed to a
# fault in our files.
_OUT_OF_REACH = re.compile(
    r"\b(ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET_TIMEOUT"
    r"|FETCH_ERROR|UNABLE_TO_GET_ISSUER_CERT_LOCALLY|SELF_SIGNED_CERT_IN_CHAIN|E40[1347]|ETARGET|E5\d\d)\b"
)


class Unavailable(Exception):
    """npm isn't here, or its registry can't be reached or hasn't got it. Nothing of ours is at
    fault.
    """


@dataclass(frozen=True, slots=True)
class Installed:
    """Where a folder's packages are, and the Node to run them with."""

    folder: Path
    node: Path

    @property
    def modules(self) -> Path:
        return self.folder / "node_modules"

    def command(self, script: Path | str, *arguments: str, token: str = "") -> list[str]:
        """The command line that runs a script, from anywhere, with these packages to import.

        Args:
            token: What each of its requests is to carry; `environment` takes it too.
        """
        first = ["resolve.mjs", *(["bearer.mjs"] if token else [])]
        imports = [word for name in first for word in ("--import", (HERE / name).as_uri())]
        return [str(self.node), *imports, str(script), *arguments]

    def environment(self, token: str = "") -> dict[str, str]:
        """The caller's environment, with this Node first, and what `command` needs."""
        path = os.pathsep.join(
            [str(self.node.parent), str(self.modules / ".bin"), os.environ.get("PATH", "")]
        )
        return {
            **os.environ,
            "PATH": path,
            "CAPSULE_NODE_MODULES": str(self.modules),
            "CAPSULE_TOKEN": token,
        }


def ensure(folder: Path = HERE) -> Installed:
    """What `folder`'s package.json names, installed; nothing to do when it is there.

    Raises:
        Unavailable: npm or its registry can't be had.
        RuntimeError: npm says that something else is wrong; its words are in the message.
    """
    folder = folder.resolve()
    target = PLACE / "-".join(folder.relative_to(ROOT).parts)
    target.mkdir(parents=True, exist_ok=True)
    with (PLACE / ".lock").open("w") as mutex:
        fcntl.flock(mutex, fcntl.LOCK_EX)
        _install(folder, target)
    return Installed(target, _node(target if folder == HERE else ensure().folder))


def _install(folder: Path, target: Path) -> None:
    digest = hashlib.sha256()
    for name in _PINNED:
        digest.update((folder / name).read_bytes())
    stamp = target / ".made"
    if stamp.is_file() and stamp.read_text() == digest.hexdigest():
        return
    stamp.unlink(missing_ok=True)
    for name in _PINNED:
        shutil.copyfile(folder / name, target / name)
    _npm(target, "ci", "--loglevel=error")
    stamp.write_text(digest.hexdigest())


def _node(target: Path) -> Path:
    node = target / "node_modules" / "node" / "bin" / "node"
    done = (
        subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
        if node.exists()
        else None
    )
    if done is None or done.returncode or not done.stdout.startswith("v22."):
        # The `node` package fetches the binary for this machine when it is installed, and not for
        # every machine.
        raise Unavailable(
            f"the npm package node@22 brought no Node 22 for this machine ({sys.platform})"
        )
    return node


def _npm(target: Path, *arguments: str) -> None:
    if not shutil.which("npm"):
        raise Unavailable("npm is not installed")
    print(
        f"npm {arguments[0]}, as {target.relative_to(ROOT)}/package.json says",
        file=sys.stderr,
        flush=True,
    )
    try:
        done = subprocess.run(
            ["npm", *arguments],
            cwd=target,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"npm did not finish in {TIMEOUT_S} s") from None
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()
        if found := _OUT_OF_REACH.search(said):
            raise Unavailable(f"npm's registry can't be reached, or hasn't got it ({found[0]})")
        raise RuntimeError(f"npm {arguments[0]} failed in {target.relative_to(ROOT)}:\n{said}")


def lock(folder: Path) -> None:
    """Write `folder`'s package-lock.json anew, from what the registry has today.

    Raises:
        RuntimeError: an address of a registry got into it.
    """
    (folder / "package-lock.json").unlink(missing_ok=True)
    _npm(folder, "install", "--package-lock-only", "--ignore-scripts", "--loglevel=error")
    if '"resolved"' in (folder / "package-lock.json").read_text():
        raise RuntimeError(
            f"{folder.relative_to(ROOT)}/package-lock.json names a registry; its .npmrc must omit "
            "that"
        )


def main(arguments: list[str]) -> int:
    if "--lock" in arguments:
        for found in sorted((ROOT / "tests").rglob("package.json")):
            lock(found.parent)
        return 0
    try:
        print(ensure(Path(arguments[0]) if arguments else HERE).node)
    except Unavailable as error:
        print(f"unavailable: {error}", file=sys.stderr)
        return UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
