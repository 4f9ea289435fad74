"""Over HTTP each session is an instance, and so is each holder of a token; whose locks last how
long.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from capsule import Store
from capsule.errors import Locked
from tests.core.cli.conftest import Program
from tests.core.mcp_server.serving import PATIENCE_S, Http, admit, eventually, over_http

pytestmark = pytest.mark.slow

ID = "the-one"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Store.init(tmp_path / "store")
    with Store.open(tmp_path / "store", keep_locks=False) as store:
        store.create(id=ID, title="The one")
    return tmp_path / "store"


def locks(root: Path) -> list[tuple[str, str | None, str]]:
    """Of each lock: user, name, state."""
    with Store.open(root, keep_locks=False) as store:
        return [(lock.user, lock.name, lock.state) for lock in store.locks.list()]


def text(result: Any) -> str:
    return str(result["content"][0]["text"])


@pytest.mark.slow
@pytest.mark.sample
def test_two_sessions_are_two_instances_and_a_delete_releases_the_locks_of_one(root: Path) -> None:
    with over_http(root, limits={"http.CLOSING_S": PATIENCE_S}) as server:
        one, other = server.session(), server.session()
        assert not one.call("lock_conversation", id=ID).get("isError")
        assert [state for _, _, state in locks(root)] == ["held"]
        refused = other.call("append_message", id=ID, content="other")
        assert refused["isError"]
        assert "locked by" in text(refused)
        assert one.end() == 200
        assert locks(root) == []
        assert not other.call("append_message", id=ID, content="other").get("isError")
        assert one.is_over()


def test_a_session_without_requests_ends_with_its_lease_and_its_locks_with_it(root: Path) -> None:
    (root / "capsule.toml").write_text(
        '[lock]\nttl = "5s"\n', encoding="utf-8"
    )  # In which its two requests come.
    with over_http(root) as server:
        session = server.session()
        session.call("lock_conversation", id=ID)
        with Store.open(root, keep_locks=False) as store:
            eventually(lambda: not list(store.locks.list()), "the lease runs out")
        eventually(session.is_over, "the session is gone")


def test_a_session_serves_only_the_holder_who_began_it(root: Path) -> None:
    anna, bert = admit(root, "anna"), admit(root, "bert")
    with over_http(root) as server:
        session = server.session(anna)
        session.call("lock_conversation", id=ID)
        # Her locks say who she is.
        assert locks(root) == [("anna", None, "held")]
        stolen = session.headers | {"authorization": f"Bearer {bert}"}
        assert server.post("ping", **stolen)[0] == 404
        # In the protocol without sessions, the header of one opens nothing.
        _, _, told = server.modern(
            "tools/call",
            {"name": "append_message", "arguments": {"id": ID, "content": "x"}},
            authorization=f"Bearer {bert}",
            mcp_session_id=session.id,
        )
        assert told["result"]["isError"]
        assert "locked by anna" in text(told["result"])


def test_without_a_session_a_token_makes_a_holder_whose_lock_outlives_the_server(
    root: Path,
) -> None:
    anna, bert = admit(root, "anna"), admit(root, "bert")
    with over_http(root) as server:
        assert not server.modern_call("append_message", anna, id=ID, content="free").get("isError")
        assert locks(root) == []
        assert not server.modern_call("lock_conversation", anna, id=ID).get("isError")
        assert [(name, state) for _, name, state in locks(root)] == [("anna", "held")]
        assert server.modern_call("append_message", bert, id=ID, content="not now")["isError"]
        assert not server.modern_call("append_message", anna, id=ID, content="hers").get("isError")
        server.signal(15)
        assert server.ended() == 0
    assert [(name, state) for _, name, state in locks(root)] == [("anna", "held")]
    # The same holder as on the command line.
    program = Program(root)
    program("--store", str(root), "--instance", "anna", "append", ID, "from the shell")
    with over_http(root) as server:
        assert not server.modern_call("unlock_conversation", anna, id=ID).get("isError")
        assert not server.modern_call("append_message", bert, id=ID, content="now").get("isError")


def test_a_revoked_token_is_refused_at_the_next_request_and_its_locks_are_released(
    root: Path,
) -> None:
    anna = admit(root, "anna")
    with over_http(root) as server:
        session = server.session(anna)
        session.call("lock_conversation", id=ID)
        Program(root)("--store", str(root), "mcp", "tokens", "revoke", "anna")
        assert server.post("ping", **session.headers)[0] == 401
        eventually(lambda: locks(root) == [], "her locks are released")


def test_a_stop_releases_the_locks_of_all_sessions(root: Path) -> None:
    with Store.open(root, keep_locks=False) as store:
        ids = [store.create(title=f"T {n}").id for n in range(5)]
    with over_http(root) as server:
        for id in ids:
            assert not server.session().call("lock_conversation", id=id).get("isError")
        assert len(locks(root)) == 5
        server.signal(15)
        assert server.ended() == 0
    assert all(state == "orphaned" for _, _, state in locks(root))


def test_a_killed_server_leaves_no_live_lock(root: Path) -> None:
    with over_http(root) as server:
        server.session().call("lock_conversation", id=ID)
        server.signal(9)
        server.ended()
    with Store.open(root) as store:
        store.append(ID, content="two")


@pytest.mark.parametrize(("mode", "version"), [("legacy", "2025-11-25"), ("auto", "2026-07-28")])
def test_the_client_of_the_sdk_writes_and_reads_with_a_token_in_both_eras(
    root: Path, mode: Any, version: str
) -> None:
    anna = admit(root, "anna")

    async def talk(url: str) -> None:
        own = create_mcp_http_client(headers={"Authorization": f"Bearer {anna}"})
        async with own, Client(streamable_http_client(url, http_client=own), mode=mode) as client:
            assert client.protocol_version == version
            assert not (
                await client.call_tool("append_message", {"id": ID, "content": "Grüße"})
            ).is_error
            assert not (await client.call_tool("lock_conversation", {"id": ID})).is_error
            with Store.open(root) as other, pytest.raises(Locked):
                other.append(ID, content="not now")
            assert not (await client.call_tool("unlock_conversation", {"id": ID})).is_error

    with over_http(root) as server:
        anyio.run(talk, server.url)
    assert [
        m["content"]
        for m in json.loads((root / "conversations" / f"{ID}.json").read_bytes())["history"]
    ] == ["Grüße"]
    assert locks(root) == []


def test_many_sessions_come_and_go_and_leave_no_file_open(root: Path) -> None:
    with over_http(root) as server:

        def open_files() -> int:
            return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))

        _use(server)
        if not Path("/proc/self/fd").exists():
            pytest.skip("there is no /proc here")
        before = open_files()
        for _ in range(20):
            _use(server)
        eventually(lambda: open_files() <= before + 3, "the files of ended sessions are closed")


def test_a_session_costs_little_memory(root: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("there is no /proc here")
    with over_http(root) as server:

        def resident_kb() -> int:
            status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8")
            return int(status.partition("VmRSS:")[2].split()[0])

        def begin(n: int) -> None:
            for _ in range(n):
                session = server.session()
                for tool, asked in (("list_conversations", {}), ("search", {"query": "one"})):
                    assert not session.call(tool, **asked).get("isError")

        begin(10)
        before = resident_kb()
        begin(20)
        assert (resident_kb() - before) / 20 < 400


def _use(server: Http) -> None:
    session = server.session()
    assert not session.call("append_message", id=ID, content="x").get("isError")
    assert session.end() == 200
