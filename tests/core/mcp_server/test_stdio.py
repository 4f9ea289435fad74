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

from capsule import Store
from capsule.mcp_server.tools.answers import EXTENSION
from tests.core.cli.conftest import Program
from tests.core.mcp_server.serving import ROOT, Stdio, environment, over_stdio

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
        command=sys.executable,
        args=["-m", "capsule_cli", "mcp", *words],
        env=environment(**more),
        cwd=str(ROOT),
    )


@pytest.mark.parametrize(
    ("mode", "version"),
    [pytest.param("legacy", "2025-11-25", marks=pytest.mark.slow), ("auto", "2026-07-28")],
)
def test_the_client_of_the_sdk_writes_and_reads_in_both_eras(
    root: Path, mode: Any, version: str
) -> None:
    async def talk() -> tuple[str, str]:
        async with Client(
            stdio_client(parameters("--store", str(root))), mode=mode, extensions=[TAKES_DATA]
        ) as client:
            made = await client.call_tool("create_conversation", {"title": "Made over stdio"})
            assert not made.is_error, made
            assert made.structured_content is not None
            id = made.structured_content["id"]
            assert not (
                await client.call_tool("append_message", {"id": id, "content": "Grüße"})
            ).is_error
            return client.protocol_version, id

    spoken, id = anyio.run(talk)
    assert spoken == version
    with Store.open(root) as store:
        assert [message.content for message in store.load(id).history] == ["Grüße"]
        # The client has gone, and the server with it: this is another instance.
        store.append(id, content="And now I")


@pytest.mark.slow
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
        content = "ü" * 300_000  # Larger than a pipe.
        client.call("append_message", id=id, content=content)
        answer = client.answer(
            client.send("resources/read", {"uri": f"capsule://conversations/{id}"})
        )
        assert content[:1000] in json.dumps(answer, ensure_ascii=False)
        client.leave()
        for message in client.answers():
            assert message["jsonrpc"] == "2.0"
        assert client.ended() == 0
    for kind in ("descriptor", "print", "buffer"):
        assert f"noise of a {kind}" in client.said


def test_a_directory_that_is_no_store_is_an_error_on_stderr(tmp_path: Path) -> None:
    client = Stdio(root=tmp_path / "nowhere")
    try:
        assert client.ended() == 3
        assert "capsule init" in client.said
        assert list(client.answers()) == []
    finally:
        client.close()


def test_options_for_the_other_transport_are_refused(root: Path) -> None:
    for words in (("--allow-host", "example.org"), ("--http", "0", "--as", "anna")):
        said = Program(root)("mcp", "--store", str(root), *words, expect=2).stderr
        assert "--as" in said or "--allow-host" in said


@pytest.mark.slow
def test_every_invalid_line_is_answered_with_its_id_and_the_server_goes_on(root: Path) -> None:
    cut = rb'{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"append_message","arguments":{"id":"%s"}}}'
    answers: list[tuple[bytes, object, int]] = [
        # A JavaScript client that cut an emoji in two, and one that sends other bytes than UTF-8.
        (cut % (b"7", rb"\ud83d"), 7, -32602),
        (cut % (b'"\\udc00"', b"x"), "\udc00", -32602),
        (b'{"jsonrpc":"2.0","id":22,"method":"ping","params":{"x":1e999}}', 22, -32602),
        (cut % (b"8", b"\xff\xfe"), 8, -32602),
        (b"{", None, -32700),
        (b"\x00\x01", None, -32700),
        (b"[" * 100_000, None, -32700),
        (b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}', None, -32700),
        (b"[]", None, -32600),
        (b"3", None, -32600),
        (b'[{"jsonrpc":"2.0","id":9,"method":"ping"}]', None, -32600),
        (b'{"jsonrpc":"2.0","id":10}', 10, -32600),
        (b'{"id":11,"method":"ping"}', 11, -32600),
        (b'{"jsonrpc":"1.0","id":12,"method":"ping"}', 12, -32600),
        (b'{"jsonrpc":"2.0","id":13,"method":7}', 13, -32600),
        (b'{"jsonrpc":"2.0","id":14,"method":"ping","params":[1]}', 14, -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', 1.5, -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', None, -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', None, -32600),
        (b'{"jsonrpc":"2.0","id":15,"method":"nothing/there"}', 15, -32601),
        (b'{"jsonrpc":"2.0","id":16,"method":"tools/call"}', 16, -32602),
        (b'{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":["a"]}}', 17, -32602),
        (
            b'{"jsonrpc":"2.0","id":18,"method":"tools/call","params":{"name":"nothing"}}',
            18,
            -32602,
        ),
        (b'{"jsonrpc":"2.0","id":19,"method":"resources/read","params":{"uri":8}}', 19, -32602),
        (
            b'{"jsonrpc":"2.0","id":20,"method":"logging/setLevel","params":{"level":"loud"}}',
            20,
            -32602,
        ),
        # An answer to nothing: its id is none of the client's requests.
        (b'{"jsonrpc":"2.0","id":21,"result":7}', None, -32600),
    ]
    with over_stdio(root) as client:
        assert client.process.stdin is not None
        for line, id, code in answers:
            client.process.stdin.write(b"\n" + line + b"\r\n")
            client.process.stdin.flush()
            said = next(client.answers())
            assert (said["id"], said["error"]["code"]) == (id, code), (line[:80], said)
            assert len(said["error"]["message"]) < 1000 and (
                "1e999" in said["error"]["message"]
            ) == (b"1e999" in line)
            assert client.answer(client.send("ping"))["result"] == {}
        client.leave()
        assert client.ended() == 0, client.said


@pytest.mark.slow
def test_a_started_identity_says_who_writes_and_a_read_only_server_lets_nobody_write(
    root: Path,
) -> None:
    with over_stdio(root, "--as", "anna") as client:
        id = client.call("create_conversation", title="T", content="first", type="group")["id"]
        client.call("branch", id=id, action="edit", message="@0", content="first, better")
        refused = client.answer(
            client.send_call("append_message", id=id, content="x", role="user", sender="bert")
        )
        assert refused["result"]["isError"]
    with Store.open(root) as store:
        assert store.document(id)["metadata"]["createdBy"] == "anna"
        assert [message["from"] for message in store.document(id)["history"]] == ["anna", "anna"]
    with over_stdio(root, "--read-only") as client:
        listed = client.answer(client.send("tools/list"))["result"]["tools"]
        assert all(tool["annotations"].get("readOnlyHint") for tool in listed)
        assert client.call("read_conversation", id=id)
        refused = client.answer(client.send_call("append_message", id=id, content="x"))
        assert "append_message was not called" in refused["result"]["content"][0]["text"]
