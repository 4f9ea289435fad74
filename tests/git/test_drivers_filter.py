"""The filter, started by real git: what gets into the index, what doesn't, and who waits
for whom.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.engines.files.storage import FileStorage
from capsule.errors import InvalidInput
from capsule.format.merge.clean_form import clean
from capsule.format.validation import CONVERSATION, KINDS
from capsule.git import drivers
from capsule.git.attributes import attribute_lines
from capsule.git.drivers import cleaner, kind_of, serve_filter
from tests.git.repositories import PROGRAM, ROOT, Clone, cloned, environment, new, published
from tests.git.talking import conversation, status

#: A store's folder as unpleasant as a file system allows.
FOLDER = 'a "b"\n[c] ü\\'


def lock(clone: Clone, id: str) -> bytes:
    """Lock a conversation, as an instance that is gone by now; its bytes."""
    data = clone.file(id).read_bytes()
    held = json.loads(data)["metadata"]["lock"] | {
        "active": True,
        "user": "anna",
        "instanceId": "i-1",
        "host": "h",
    }
    text = json.dumps(held, indent=2).replace("\n", "\n    ")
    start = data.index(b'"lock": ') + len(b'"lock": ')
    locked = data[:start] + text.encode() + data[data.index(b"}", start) + 1 :]
    clone.file(id).write_bytes(locked)
    assert clean(locked, "", "conversations") == clean(data, "", "conversations")
    return locked


def break_it(clone: Clone, id: str) -> bytes:
    """Type an error into a conversation, at the same size; the bytes it had."""
    data = clone.file(id).read_bytes()
    os.utime(clone.file(id), (1_700_000_000, 1_700_000_000))
    clone.run("update-index", "--refresh", "-q", expect=None)
    clone.file(id).write_bytes(data.replace(b'"title": ', b'"title"; ', 1))
    return data


def test_a_locked_conversation_gets_into_the_index_unlocked_and_stays_locked(repo: Clone) -> None:
    id = conversation(repo, "Hello")
    unlocked = repo.file(id).read_bytes()
    repo.commit()
    assert repo.at("HEAD", id) == unlocked
    locked = lock(repo, id)
    assert repo.git("diff") == ""
    repo.run("add", "--all")
    assert status(repo) == []
    assert repo.at("", id) == unlocked
    assert repo.file(id).read_bytes() == locked


@pytest.mark.slow
@pytest.mark.parametrize("autocrlf", ["true", "false", "input"])
def test_other_line_ends_never_reach_the_index(repo: Clone, autocrlf: str) -> None:
    repo.configure(core_autocrlf=autocrlf)
    id = conversation(repo, "Hello\r\nthere\n")
    canonical = repo.file(id).read_bytes()
    for ends, mark in (
        (b"\n", b""),
        (b"\r\n", b""),
        (b"\n", b"\xef\xbb\xbf"),
        (b"\r\n", b"\xef\xbb\xbf"),
    ):
        typed = mark + canonical.replace(b"\n", ends)
        repo.file(id).write_bytes(typed)
        repo.commit()
        assert repo.at("HEAD", id) == canonical and repo.file(id).read_bytes() == typed
    repo.file(id).unlink()
    repo.run("checkout", "--", ".")
    assert repo.file(id).read_bytes() == canonical


@pytest.mark.slow
def test_git_takes_a_broken_capsule_as_it_is_and_names_its_place(repo: Clone) -> None:
    id = conversation(repo, "Hello")
    repo.commit()
    whole = break_it(repo, id)
    ran = repo.run("status", "--porcelain")
    assert ran.lines == [f" M conversations/{id}.json"]
    assert f"capsule: conversations/{id}.json:3:10: a colon is missing" in ran.err
    shown = repo.git("diff")
    assert '+  "title"; "Plan",' in shown
    assert "-2" in shown and "user: Hello" in shown
    repo.run("switch", "-q", "-c", "aside")
    repo.run("checkout", "--", f"conversations/{id}.json")
    assert repo.file(id).read_bytes() == whole
    break_it(repo, id)
    repo.run("stash")
    assert status(repo) == []
    break_it(repo, id)
    repo.run("add", "--all")
    assert repo.at("", id) == repo.file(id).read_bytes()


def test_a_broken_capsule_does_not_stop_the_next_one() -> None:
    def request(path: str, data: bytes) -> bytes:
        return drivers.packed("command=clean", f"pathname={path}") + drivers.content(data)

    good, told = b'{"version": "9.0"}', list[str]()
    asked = drivers.packed("git-filter-client", "version=2", "version=3")
    asked += drivers.packed("capability=clean", "capability=smudge", "capability=delay")
    asked += request("a=b/conversations/x.json", b"{") + request("conversations/y.json", good)
    asked += drivers.packed(
        "command=smudge", "pathname=z", "ref=refs/heads/main"
    ) + drivers.content(b"{any\r\n")
    answered = io.BytesIO()
    serve_filter(io.BytesIO(asked), answered, cleaner("/nowhere", told.append), told.append)
    answered.seek(0)
    lists = []
    while (at := answered.tell()) < len(answered.getvalue()):
        lists.append(drivers.packets(answered))
        assert answered.tell() > at
    welcome = [
        [b"git-filter-server\n", b"version=2\n"],
        [b"capability=clean\n", b"capability=smudge\n"],
    ]
    answers = [[[b"status=success\n"], [data], []] for data in (b"{", good, b"{any\r\n")]
    assert lists == welcome + [packets for answer in answers for packets in answer]
    assert [words.partition(": ")[0] for words in told] == ["a=b/conversations/x.json:1:2"]


def test_a_store_in_a_folder_whose_name_needs_quoting(tmp_path: Path) -> None:
    clone = new(tmp_path / "mo no", FOLDER)
    id = conversation(clone, "Hello")
    unlocked = clone.file(id).read_bytes()
    lock(clone, id)
    (clone.root / "agents").mkdir()
    agent = clone.file("anna", "agents")
    agent.write_text('{"id": "anna",\r\n "cursors": {}}', encoding="utf-8")
    clone.commit()
    assert clone.at("HEAD", id) == unlocked
    assert clone.at("HEAD", "anna", "agents") == b'{\n  "id": "anna",\n  "cursors": {}\n}\n'
    break_it(clone, id)
    ran = clone.run("-C", FOLDER, "add", ".")
    assert f"[c] ü\\/conversations/{id}.json:3:10: " in ran.err


def test_a_clone_checks_out_what_was_committed_byte_for_byte(repo: Clone, tmp_path: Path) -> None:
    id = conversation(repo, "grüße " * 60_000, "\u2028 \r\n")
    locked = lock(repo, id)
    repo.commit()
    assert len(repo.at("HEAD", id)) > 7 * 65516  # In many packets.
    assert repo.at("HEAD", id) == clean(locked, "", "conversations")
    other = cloned(published(repo, tmp_path / "remote.git"), tmp_path / "other")
    assert other.file(id).read_bytes() == repo.at("HEAD", id)
    assert status(other) == []


def test_a_settled_tree_is_looked_at_without_a_filter(repo: Clone) -> None:
    for at in range(3):
        os.utime(repo.file(conversation(repo, f"{at}")), (1_700_000_000, 1_700_000_000))
    repo.commit()
    repo.configure(filter_capsule_process="exit 1")
    assert status(repo) == []
    assert repo.git("diff") == ""


def test_an_append_that_git_met_half_way_is_waited_for(root: Path) -> None:
    from capsule import Store

    with Store.open(root) as store:
        id = store.create(type="group").id
        store.append(id, content="Hello")
        whole = store.read(id)
    path = f"conversations/{id}.json"
    told = list[str]()
    answer = cleaner(str(root), told.append)
    assert answer(whole[:-40], path) == whole and not told
    (root / path).write_bytes(whole[:-9])
    assert answer(whole[:-9], path) == whole[:-9] and path in told[0]
    assert (root / path).read_bytes() == whole[:-9]


def test_the_caller_of_git_may_hold_the_mutex(repo: Clone) -> None:
    good, bad = conversation(repo, "one"), conversation(repo, "two")
    break_it(repo, bad)
    storage = FileStorage(str(repo.root))
    with storage.hold("conversations", good), storage.hold("conversations", bad):
        repo.run("add", f"conversations/{good}.json")
        assert f"{bad}.json:3:10: " in repo.run("add", "--all").err
    storage.close()


def test_a_store_that_never_wrote_a_file_is_left_without_a_trace(repo: Clone) -> None:
    repo.file("typed").write_bytes(b'{"id": "typed"')
    before = sorted(str(path) for path in (repo.root / ".capsule").rglob("*"))
    assert "conversations/typed.json:1:15: " in repo.run("add", "--all").err
    assert sorted(str(path) for path in (repo.root / ".capsule").rglob("*")) == before


def begun() -> subprocess.Popen[bytes]:
    """The filter as git starts it, hands shaken."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([*PROGRAM, "filter"], env=environment(), cwd=ROOT, **pipes)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(
        drivers.packed("git-filter-client", "version=2") + drivers.packed("capability=clean")
    )
    process.stdin.flush()
    assert drivers.packets(process.stdout) == [b"git-filter-server\n", b"version=2\n"]
    assert drivers.packets(process.stdout) == [b"capability=clean\n"]
    return process


def test_a_git_that_ends_anywhere_ends_the_filter_without_a_word() -> None:
    request = drivers.packed("command=clean", "pathname=conversations/x.json") + drivers.content(
        b'{"a": 1}' * 9
    )
    for sent in (0, 10, 60, 90):
        process = begun()
        _, err = process.communicate(request[:sent], timeout=60)
        assert (process.returncode, err) == (0, b"")


def test_a_git_that_does_not_listen_ends_the_filter_without_a_word() -> None:
    process = begun()
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdout.close()
    data = b'{"version": "9.0", "text": "' + b"x" * 500_000 + b'"}'
    request = drivers.packed("command=clean", "pathname=conversations/x.json") + drivers.content(
        data
    )
    process.stdin.write(request)
    process.stdin.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait(timeout=60)


def test_a_driver_started_by_hand_prints_its_usage() -> None:
    for typed, word in (
        (b"help me\n", "not the start of a packet"),
        (b"0009hello0000", "only git starts it"),
    ):
        done = subprocess.run(
            [*PROGRAM, "filter"], input=typed, capture_output=True, env=environment(), timeout=60
        )
        assert done.returncode == 2
        assert word in done.stderr.decode()
    for arguments in ([], ["else"], ["merge", "a"], ["textconv"]):
        done = subprocess.run(
            [*PROGRAM, *arguments], capture_output=True, env=environment(), timeout=60
        )
        assert done.returncode == 2
        assert done.stderr.startswith(b"usage: ")


def test_nothing_heavy_is_loaded_for_a_file(repo: Clone) -> None:
    file = repo.file(conversation(repo, "Hello"))
    data = file.read_bytes()
    request = drivers.packed("command=clean", f"pathname={file}") + drivers.content(data)
    asked = (
        drivers.packed("git-filter-client", "version=2")
        + drivers.packed("capability=clean")
        + request
    )
    report = (
        "import sys; from capsule_cli import drivers; drivers.main(); sys.stderr.write(' "
        "'.join(sys.modules))"
    )
    for arguments, input in ((["filter"], asked), (["textconv", str(file)], b"")):
        done = subprocess.run(
            [sys.executable, "-P", "-c", report, *arguments],
            input=input,
            capture_output=True,
            env=environment(),
        )
        loaded = set(done.stderr.decode().split())
        assert "capsule.format.merge.clean_form" in loaded or "capsule.git.textconv" in loaded
        assert not loaded & {
            "typer",
            "pydantic",
            "rich",
            "mcp",
            "sqlite3",
            "portalocker",
            "subprocess",
            "hashlib",
        }
        assert not loaded & {
            "capsule.public",
            "capsule.engines.opening",
            "capsule.format.models",
            "capsule_cli.app",
        }


#: A filter that tells when it is at a file, and waits there until it may go on, or dies there.
HALFWAY = """
import os, signal, sys
from capsule.git import drivers as git_drivers
from capsule_cli import drivers

way, at, ready, go = sys.argv[1:]
whole = git_drivers.cleaner
def cleaner(top, compares):
    clean_form, left = whole(top, compares), [int(at)]
    def one(data, path):
        left[0] -= 1
        if not left[0]:
            if way == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            for pipe, how in ((ready, "w"), (go, "r")):
                with open(pipe, how):
                    pass
        return clean_form(data, path)
    return one
git_drivers.cleaner = cleaner
sys.argv[1:] = ["filter"]
sys.exit(drivers.main())
"""


@pytest.fixture
def halfway(tmp_path: Path) -> Callable[[str], str]:
    """The command of such a filter, and pipes `ready` and `go` beside it."""
    import shlex

    script = tmp_path / "halfway.py"
    script.write_text(HALFWAY, encoding="utf-8")
    pipes = [str(tmp_path / name) for name in ("ready", "go")]
    for pipe in pipes:
        os.mkfifo(pipe)
    return lambda how: shlex.join([sys.executable, "-P", str(script), how, "3", *pipes])


def test_a_filter_or_git_that_is_killed_halfway_adds_nothing_and_the_next_add_does(
    repo: Clone, tmp_path: Path, halfway: Callable[[str], str]
) -> None:
    ids = [conversation(repo, f"{at}") for at in range(5)]
    ran = repo.run("-c", f"filter.capsule.process={halfway('die')}", "add", "--all", expect=128)
    assert "Traceback" not in ran.err
    assert repo.git("ls-files", "conversations") == ""
    command = ["git", "-c", f"filter.capsule.process={halfway('wait')}", "add", "--all"]
    git = subprocess.Popen(command, cwd=repo.top, env=environment(), stderr=subprocess.PIPE)
    assert git.stderr is not None
    with open(tmp_path / "ready", encoding="utf-8"):
        git.kill()
        git.wait()
    with open(tmp_path / "go", "w", encoding="utf-8"):
        pass
    assert git.stderr.read() == b""  # It ends when the filter, which has it too, has ended.
    git.stderr.close()
    (repo.top / ".git" / "index.lock").unlink()
    repo.commit()
    assert [repo.at("HEAD", id) for id in ids] == [repo.file(id).read_bytes() for id in ids]
    repo.run("fsck", "--strict")


# -- Packets ---------------------------------------------------------------------------------------


def test_a_content_of_any_size_goes_through_in_packets_that_git_takes() -> None:
    for size in [0, 1, 65515, 65516, 65517, 2 * 65516, 300_000]:
        data = bytes(at % 251 for at in range(size))
        written = drivers.content(data)
        packets = drivers.packets(io.BytesIO(written))
        assert b"".join(packets) == data
        assert all(0 < len(packet) <= 65516 for packet in packets)


@given(st.lists(st.text(st.characters(exclude_characters="\n"), max_size=20)))
def test_lines_are_read_as_they_were_written(lines: list[str]) -> None:
    lines = [
        line.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape") for line in lines
    ]
    stream = io.BytesIO(drivers.packed(*lines) + b"behind")
    assert list(map(drivers.text, drivers.packets(stream))) == lines
    assert stream.read() == b"behind"


@given(st.binary(max_size=30), st.data())
def test_a_stream_that_is_cut_anywhere_counts_as_ended(carried: bytes, data: st.DataObject) -> None:
    written = drivers.content(carried)
    cut = written[: data.draw(st.integers(0, len(written) - 1))]
    with pytest.raises(drivers.StreamClosed):
        drivers.packets(io.BytesIO(cut))


def test_other_bytes_than_packets_are_refused() -> None:
    for typed in [b"help\n", b"0003", b"0001", b"ffff" + b"x" * 65531, b"-001", b"+0a1"]:
        with pytest.raises(InvalidInput, match="not the start of a packet"):
            drivers.packets(io.BytesIO(typed))


@pytest.mark.parametrize("kind", KINDS)
def test_git_treats_the_documents_of_each_kind_alike(kind: str) -> None:
    assert (
        kind_of(f"below/{kind}/x.json") == kind and kind_of("elsewhere/x.json") == CONVERSATION.name
    )
    assert [line for line in attribute_lines() if line.startswith(f"{kind}/*.json")]
