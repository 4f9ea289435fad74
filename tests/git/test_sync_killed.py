"""A sync that dies between two of its steps: no file is half, nothing waits half merged, and the
next one goes on.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.format.json import codec
from tests.git.repositories import Clone, cloned, new, published
from tests.git.talking import contents, status, sync_all, sync_of
from tests.processes import Child

pytestmark = pytest.mark.slow

#: Forks one for each sync, warm, that kills itself when it gets to the named step the n-th time.
KILLED = """
import signal
from pathlib import Path
from tests.git.repositories import Clone
from tests.git.talking import sync_of
say("ready")
while True:
    top, folder, step, times = hear()
    pid = os.fork()
    if not pid:
        met = 0
        def die(name, done, total):
            global met
            met += name == step
            if name == step and met == times:
                os.kill(os.getpid(), signal.SIGKILL)
        try:
            sync_of(Clone(Path(top), folder), die)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    _, how = os.waitpid(pid, 0)
    say(os.WTERMSIG(how) if os.WIFSIGNALED(how) else -os.WEXITSTATUS(how))
"""
STEPS = (
    *("look", "read", "compare", "commit", "fetch", "merge", "join", "check", "rehearse"),
    *("write", "index", "files", "head", "refresh", "push"),
)


def conversation(store: Store, title: str) -> str:
    return store.create(
        title=title, type="group", messages=[{"role": "user", "content": "first"}]
    ).id


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, Any]]:
    """What the tests of this module share; made by the first of them, in a test's environment."""
    kept: dict[str, Any] = {}
    yield kept
    kept["supervisor"].close()


@pytest.fixture
def diverged(
    kept: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, str]]:
    """Two clones of a monorepo that both went on, in a folder to be copied;
    and the conversations.
    """
    if "diverged" not in kept:
        place = tmp_path_factory.mktemp("diverged")
        kept["diverged"] = (place, _went_on(place))
    return kept["diverged"]


def _went_on(place: Path) -> dict[str, str]:
    anna = new(place / "anna", "tälk [s]")
    (anna.top / "code.py").write_text("first\n")
    with anna.store() as store:
        ids = {title: conversation(store, title) for title in ("both", "theirs", "mine", "deleted")}
    anna.commit()
    ben = cloned(published(anna, place / "remote.git"), place / "ben", anna.folder)
    for clone, name, other in ((anna, "anna", "theirs"), (ben, "ben", "mine")):
        with Store.open(clone.root, keep_locks=False) as store:
            for id in (ids["both"], ids[other]):
                store.append(id, content=f"from {name}")
            ids[name] = conversation(store, name)
            if name == "anna":
                store.delete(ids["deleted"])
    (anna.top / "code.py").write_text("by anna\n")
    anna.run("commit", "-qm", "code", "code.py")
    sync_of(anna)
    return ids


@pytest.fixture
def supervisor(kept: dict[str, Any]) -> Child:
    if "supervisor" not in kept:
        kept["supervisor"] = Child(KILLED)
        assert kept["supervisor"].hear() == "ready"
    return kept["supervisor"]


@pytest.fixture
def copied(
    diverged: tuple[Path, dict[str, str]], tmp_path: Path
) -> tuple[Clone, Clone, dict[str, str]]:
    """A copy of the two clones, and the conversations."""
    to = tmp_path / "copy"
    shutil.copytree(diverged[0], to, symlinks=True)
    anna, ben = Clone(to / "anna", "tälk [s]"), Clone(to / "ben", "tälk [s]")
    for clone in (anna, ben):
        clone.run("remote", "set-url", "origin", str(to / "remote.git"))
    return anna, ben, diverged[1]


def files_of(clone: Clone) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (clone.root / "conversations").iterdir()}


def whole(clone: Clone, ids: dict[str, str]) -> None:
    """Assert that all that was said in ben's clone is there, in files that parse."""
    for path in (clone.root / "conversations").iterdir():
        codec.decode(path.read_bytes(), str(path))
    for title, text in (
        ("both", "from ben"),
        ("mine", "from ben"),
        ("theirs", "first"),
        ("ben", "first"),
    ):
        assert text in contents(clone, ids[title])
    directory = Path(clone.repository.directory)
    assert not [
        name for name in ("MERGE_HEAD", "index.lock", "HEAD.lock") if (directory / name).exists()
    ]


def finished(anna: Clone, ben: Clone, ids: dict[str, str]) -> None:
    sync_all(ben, anna, ben)
    for clone in (anna, ben):
        assert sorted(contents(clone, ids["both"])) == ["first", "from anna", "from ben"]
        assert contents(clone, ids["theirs"]) == ["first", "from anna"]
        assert contents(clone, ids["mine"]) == ["first", "from ben"]
        assert contents(clone, ids["anna"]) == contents(clone, ids["ben"]) == ["first"]
        assert not clone.file(ids["deleted"]).exists()
        assert (clone.top / "code.py").read_text() == "by anna\n"
        assert status(clone) == []
    assert files_of(anna) == files_of(ben)


@pytest.mark.parametrize(("step", "times"), [*((step, 1) for step in STEPS), ("write", 3)])
def test_a_sync_that_is_killed_before_a_step_is_finished_by_the_next(
    copied: tuple[Clone, Clone, dict[str, str]], supervisor: Child, step: str, times: int
) -> None:
    anna, ben, ids = copied
    before = ben.git("rev-parse", "HEAD")
    supervisor.say([str(ben.top), ben.folder, step, times])
    assert supervisor.hear() == 9
    whole(ben, ids)
    assert ben.run("merge-base", "--is-ancestor", before, "HEAD").code == 0
    finished(anna, ben, ids)


def test_a_sync_that_is_killed_repeatedly_can_be_finished(
    copied: tuple[Clone, Clone, dict[str, str]], supervisor: Child
) -> None:
    anna, ben, ids = copied
    for step in ("write", "index", "files", "head", "write", "refresh"):
        supervisor.say([str(ben.top), ben.folder, step, 1])
        assert supervisor.hear() in (9, 0)
        whole(ben, ids)
    finished(anna, ben, ids)


def test_a_message_written_after_a_killed_sync_is_kept(
    copied: tuple[Clone, Clone, dict[str, str]], supervisor: Child
) -> None:
    anna, ben, ids = copied
    supervisor.say([str(ben.top), ben.folder, "head", 1])
    assert supervisor.hear() == 9
    with Store.open(ben.root, keep_locks=False) as store:
        store.append(ids["mine"], content="afterwards")
    sync_all(ben, anna)
    assert contents(anna, ids["mine"]) == ["first", "from ben", "afterwards"]
