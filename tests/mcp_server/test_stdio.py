"""`capsule mcp` over stdin and stdout, with the SDK's own client and by hand."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.client.extension import advertise
from mcp.client.stdio import StdioServerParameters, stdio_client

from capsule import Locked, Store
from capsule.mcp_server.forms import EXTENSION
from tests.mcp_server.serving import ROOT, Stdio, environment, over_stdio

TAKES_DATA = advertise(EXTENSION, {"takes": ["data"]})
#: Prints on every way there is to stdout, as soon as the SDK is being imported.
NOISE = """
import os, sys, threading, time
def noise():
    while "mcp" not in sys.modules:
        time.sleep(0.001)
    while True:
        os.write(1, b"noise of a descriptor\\n")
        print("noise of a print", flush=True)
        sys.__stdout__.buffer.write(b"noise of a buffer\\n")
        time.sleep(0.002)
threading.Thread(target=noise, daemon=True).start()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Store.init(tmp_path / "störe")
    return tmp_path / "störe"


def parameters(*words: str, **more: str) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable, args=["-m", "capsule_cli", "mcp", *words], env=environment(**more), cwd=str(ROOT)
    )


@pytest.mark.parametrize(("mode", "version"), [("legacy", "2025-11-25"), ("auto", "2026-07-28")])
def test_the_client_of_the_sdk_writes_and_reads_in_both_eras(root: Path, mode: Any, version: str) -> None:
    async def talk() -> tuple[str, str]:
        async with Client(stdio_client(parameters("--store", str(root))), mode=mode, extensions=[TAKES_DATA]) as client:
            made = await client.call_tool("create_conversation", {"title": "Made over stdio"})
            assert not made.is_error, made
            assert made.structured_content is not None
            id = made.structured_content["id"]
            assert not (await client.call_tool("append_message", {"id": id, "content": "Grüße"})).is_error
            return client.protocol_version, id

    spoken, id = anyio.run(talk)
    assert spoken == version
    with Store.open(root) as store:
        assert [message.content for message in store.load(id).history] == ["Grüße"]
        # The client has gone, and the server with it: this is another instance.
        store.append(id, content="And now I")


def test_nothing_but_the_protocol_reaches_the_client(root: Path, tmp_path: Path) -> None:
    noisy = tmp_path / "noisy"
    noisy.mkdir()
    (noisy / "sitecustomize.py").write_text(NOISE, encoding="utf-8")
    own = environment()
    own["PYTHONPATH"] = os.pathsep.join((str(noisy), own["PYTHONPATH"]))
    with over_stdio(root, env=own) as client:
        id = client.call("create_conversation", title="T")["id"]
        for n in range(20):
            client.call("append_message", id=id, content=str(n))
        client.leave()
        for message in client.answers():
            assert message["jsonrpc"] == "2.0"
        assert client.ended() == 0
    for kind in ("descriptor", "print", "buffer"):
        assert f"noise of a {kind}" in client.said


def test_a_message_larger_than_the_pipe_comes_whole(root: Path) -> None:
    with over_stdio(root) as client:
        id = client.call("create_conversation", title="T")["id"]
        content = "ü" * 300_000
        client.call("append_message", id=id, content=content)
        answer = client.answer(client.send("resources/read", {"uri": f"capsule://conversations/{id}"}))
        assert content[:1000] in json.dumps(answer, ensure_ascii=False)


def test_the_server_finds_its_store_as_every_command_does(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = root / "deep" / "down"
    inside.mkdir(parents=True)
    found: list[str] = []

    async def make(words: tuple[str, ...], more: dict[str, str], cwd: Path) -> None:
        server = parameters(*words, **more)
        server.cwd = str(cwd)
        async with Client(stdio_client(server), extensions=[TAKES_DATA]) as client:
            made = await client.call_tool("create_conversation", {"title": f"T {len(found)}"})
            assert made.structured_content is not None
            found.append(made.structured_content["id"])

    anyio.run(make, ("--store", str(root)), {}, root.parent)
    anyio.run(make, (), {"CAPSULE_STORE": str(root)}, root.parent)
    anyio.run(make, (), {}, inside)
    with Store.open(root) as store:
        assert {head.id for head in store.heads()} == set(found)
    assert len(found) == 3


def test_a_named_server_writes_as_that_holder(root: Path) -> None:
    with over_stdio(root, "--instance", "anna") as client:
        id = client.call("create_conversation", title="T")["id"]
        client.call("lock_conversation", id=id)
        with Store.open(root) as other:
            assert [(lock.id, lock.name) for lock in other.locks()] == [(id, "anna")]


def test_a_store_that_is_none_is_told_on_stderr_with_its_exit_code(tmp_path: Path) -> None:
    client = Stdio(root=tmp_path / "nowhere")
    try:
        assert client.ended() == 3
        assert "capsule init" in client.said
        assert list(client.answers()) == []
    finally:
        client.close()


def test_options_for_http_are_refused_over_stdio(root: Path) -> None:
    for words in (("--require-token",), ("--allow-host", "example.org")):
        client = Stdio(*words, root=root)
        try:
            assert client.ended() == 2
            assert "--http" in client.said
        finally:
            client.close()


def test_a_save_keeps_nobody_else_out_and_a_lock_does(root: Path) -> None:
    with over_stdio(root) as one, Store.open(root, keep_locks=False) as other:
        id = one.call("create_conversation", title="Chat", content="Hello")["id"]
        one.call("append_message", id=id, content="Hi")
        assert other.head(id).lock is None
        other.append(id, content="Me too")
        one.call("lock_conversation", id=id)
        with pytest.raises(Locked):
            other.append(id, content="Locked out")
        one.call("append_message", id=id, content="Still mine")
        one.call("unlock_conversation", id=id)
        other.append(id, content="Free")
