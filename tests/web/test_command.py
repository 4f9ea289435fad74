"""`capsule web`, as a process of its own."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx2
import pytest

from capsule import Store
from capsule.errors import InvalidInput, Refused
from capsule.mcp_server.access import Tokens
from tests.core.mcp_server.serving import environment
from tests.web.serving import PATIENCE_S, Served

Serve = Callable[..., Served]
pytestmark = pytest.mark.slow
#: A request without a cookie, and half of a form that anybody may send.
_REFUSED = b"GET / HTTP/1.1\r\nHost: HOST\r\n\r\n"
_HALF = (
    b"POST /enter HTTP/1.1\r\nHost: HOST\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Content-Length: 9\r\n\r\ntoken"
)


def refused(*words: str, root: Path) -> tuple[int, str]:
    """The exit code and the error of a `capsule web` that does not begin to serve."""
    command = [sys.executable, "-m", "capsule_cli", "web", "--store", str(root), *words]
    ended = subprocess.run(
        command, capture_output=True, text=True, env=environment(), timeout=PATIENCE_S
    )
    assert ended.stdout == ""
    return ended.returncode, ended.stderr


@pytest.mark.sample
def test_one_line_on_stdout_is_the_address_and_sigterm_ends_it_in_order(
    root: Path, serve: Serve
) -> None:
    served = serve(root)
    assert re.fullmatch(
        rf"http://capsule-[0-9a-f]{{12}}\.localhost:{served.port}/\?token=\S+", served.address
    )
    assert served.client.get("/").status_code == 200
    assert (served.stop(), served.said) == (0, "")


def test_for_a_script_the_address_is_one_that_every_program_resolves(
    root: Path, serve: Serve
) -> None:
    served = serve(root, "--json")
    url = json.loads(served.line)["url"]
    assert url.startswith(f"http://127.0.0.1:{served.port}/?token=")
    assert httpx2.get(url, follow_redirects=False).status_code == 303


def test_the_name_stays_and_a_guessed_one_is_not_served(root: Path, serve: Serve) -> None:
    served = serve(root)
    base = served.base
    served.stop()
    served.restart()
    assert served.base == base
    guessed = [hashlib.sha256(str(root).encode()).hexdigest()[:12], root.name, "000000000000"]
    for name in (
        *(f"capsule-{each}.localhost" for each in guessed),
        "capsule.localhost",
        "x.localhost",
    ):
        assert (
            served.client.get("/", headers={"host": f"{name}:{served.port}"}).status_code == 403
        ), name
    assert served.client.get("/", headers={"host": base.partition("//")[2]}).status_code == 200


def test_it_ends_while_a_browser_holds_a_stream_of_events_open(store: Store, serve: Serve) -> None:
    served = serve(Path(store.root))
    with served.client.stream("GET", "/events") as answer:
        assert next(answer.iter_raw())
        served.process.terminate()
        assert served.process.wait(PATIENCE_S) == 0


def test_a_cookie_is_good_for_the_next_server_of_the_store(store: Store, serve: Serve) -> None:
    served = serve(Path(store.root))
    cookies = served.client.cookies
    served.kill()
    served.restart()
    with httpx2.Client(base_url=served.local, cookies=cookies) as client:
        assert client.get("/").status_code == 200


def test_an_agents_server_shows_what_the_agent_may_read(store: Store, serve: Serve) -> None:
    for agent in ("anna", "bob", "carl"):
        store.agents.register(id=agent)
    store.messages.send("for bob alone", agent="carl", to="bob")
    store.messages.send("for anna", agent="carl", to="anna")
    served = serve(Path(store.root), "--as", "anna")
    assert served.client.get("/c/direct_anna_carl").status_code == 200
    hidden = served.client.get("/c/direct_bob_carl")
    assert hidden.status_code in (403, 404)
    assert "for bob alone" not in hidden.text
    assert "direct_bob_carl" not in served.client.get("/").text


def test_a_token_of_an_agent_opens_the_owners_server_as_that_agent(
    store: Store, serve: Serve, tmp_path: Path
) -> None:
    home = tmp_path / "settings"
    token = Tokens(home / "capsule", store.root).add("anna", scope="read")
    served = serve(Path(store.root), env={"XDG_CONFIG_HOME": str(home)})
    with httpx2.Client(base_url=served.local) as client:
        assert client.post("/enter", data={"token": token}).status_code == 303
        assert "as anna" in client.get("/").text


def test_a_port_that_is_taken_is_an_error_only_if_it_was_asked_for(
    store: Store, serve: Serve
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, error = refused("--port", str(port), root=Path(store.root))
    assert code == Refused.exit_code
    assert str(port) in error


def test_nothing_is_served_beyond_this_machine_in_the_clear(store: Store) -> None:
    code, error = refused("--host", "0.0.0.0", "--port", "0", root=Path(store.root))
    assert code == Refused.exit_code
    assert "--cert" in error
    code, error = refused(
        "--host", "0.0.0.0", "--port", "0", "--cert", "a", "--key", "b", root=Path(store.root)
    )
    assert code == Refused.exit_code
    assert "--allow-host" in error
    code, error = refused("--cert", "cert.pem", root=Path(store.root))
    assert code == InvalidInput.exit_code


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not installed, which makes a certificate"
)
def test_over_tls_the_cookie_is_for_tls_only(store: Store, serve: Serve, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        str(key),
        "-out",
        str(cert),
        *name,
    ]
    subprocess.run(made, check=True, capture_output=True)
    served = serve(Path(store.root), "--cert", str(cert), "--key", str(key))
    assert served.address.startswith("https://127.0.0.1:")
    with httpx2.Client(
        base_url=served.local, verify=ssl.create_default_context(cafile=str(cert))
    ) as client:
        answer = client.get(served.address)
        assert "secure" in answer.headers["set-cookie"].lower().split("; ")
        assert client.get("/").status_code == 200


def test_a_proxy_that_is_named_may_call_the_server_by_its_name(store: Store, serve: Serve) -> None:
    served = serve(Path(store.root), "--allow-host", "talk.example.org")
    named = {"host": "talk.example.org", "origin": "https://talk.example.org"}
    assert served.client.get("/", headers=named).status_code == 200
    assert served.client.get("/", headers={"host": "other.example.org"}).status_code == 403


def test_behind_a_proxy_that_speaks_tls_the_cookie_is_for_tls_only(
    store: Store, serve: Serve
) -> None:
    served = serve(Path(store.root), "--allow-host", "talk.example.org")
    named = {"host": "talk.example.org", "x-forwarded-proto": "https"}
    with httpx2.Client(base_url=served.local) as client:
        answer = client.get(served.address.replace(served.base, served.local), headers=named)
    assert "secure" in answer.headers["set-cookie"].lower().split("; ")


@pytest.mark.parametrize("needed", ["jinja2", "nh3", "python_multipart"])
def test_what_is_not_installed_is_named_with_the_way_to_install_it(
    store: Store, needed: str
) -> None:
    program = (
        f"import sys; sys.modules[{needed!r}] = None; from capsule_cli.__main__ import main; main()"
    )
    words = ["web", "--store", store.root, "--port", "0", "--no-browser"]
    ended = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=PATIENCE_S,
    )
    assert (ended.returncode, ended.stdout) == (Refused.exit_code, "")
    assert needed in ended.stderr
    assert "pip install 'capsule-conversations[web]'" in ended.stderr


def test_a_stream_ends_with_the_token_and_has_nothing_that_came_later(
    store: Store, serve: Serve, tmp_path: Path
) -> None:
    home = tmp_path / "settings"
    tokens = Tokens(home / "capsule", store.root)
    served = serve(Path(store.root), env={"XDG_CONFIG_HOME": str(home)})
    id = store.create(title="Plan").id
    with httpx2.Client(base_url=served.local, timeout=PATIENCE_S) as client:
        client.post("/enter", data={"token": tokens.add("anna")})
        with client.stream("GET", "/events") as answer:
            came = answer.iter_text()
            assert next(came)
            message = store.append(id, content="before").id
            assert message in next(came)
            tokens.revoke("anna")
            store.append(id, content="after")
            assert "".join(came) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits another process")
@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: ", _REFUSED, _HALF])
def test_strangers_who_hold_connections_keep_nobody_out(
    store: Store, serve: Serve, sent: bytes
) -> None:
    import resource

    served = serve(Path(store.root))
    assert served.client.get("/").status_code == 200
    resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (400, 400))
    begun = sent.replace(b"HOST", f"127.0.0.1:{served.port}".encode())
    with ExitStack() as held:
        for _ in range(600):
            one = held.enter_context(socket.create_connection(("127.0.0.1", served.port or 0)))
            with suppress(OSError):  # It had to make room.
                one.sendall(begun)
        assert served.client.get("/").status_code == 200
        with httpx2.Client(
            base_url=served.local, timeout=PATIENCE_S, cookies=served.client.cookies
        ) as another:
            assert another.get("/").status_code == 200
