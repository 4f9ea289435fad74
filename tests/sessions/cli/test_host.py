"""`host`: a process that other programs talk to, and what it and its workers say of themselves."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from capsule import Store, timestamps
from capsule.sessions.adapters.programs import sign


def said(stream: Any, wanted: str) -> dict[str, Any]:
    """The next line with a field, or with a step, of this name."""
    while line := stream.readline():
        told = json.loads(line)
        if wanted in told or wanted in (told.get("step"), told.get("event")):
            return dict(told)
    raise AssertionError(f"it ended without {wanted}")


def test_the_status_names_hosts_and_workers_that_live(capsule: Any) -> None:
    assert capsule.json("worker", "status") == []
    capsule("worker", "host", "--stdio", "status", expect=2)
    assert "wire stdio:stdio" in capsule("worker", "host", "--stdio", expect=2).stderr
    with Store.open(capsule.root) as store:
        about = {"host": os.getpid(), "state": "running", "since": timestamps.now()}
        store.engine.leases.acquire(store.instance_id, about)
        (one,) = capsule.json("worker", "status")
        assert (one["what"], one["pid"], one["state"]) == ("host", os.getpid(), "running") and one[
            "memory"
        ]


@pytest.mark.slow
def test_a_host_answers_lines_and_requests_and_ends_with_its_input(
    capsule: Any, tmp_path: Path
) -> None:
    capsule("worker", "set", "helper", "--", "sh", "-c", "cat > /dev/null; echo Done.")
    secret = capsule("worker", "webhook", "ci").line
    for place in ("stdio:desk", "webhook:ci"):
        capsule("worker", "wire", place, "helper", "--pattern", ".")
    host = capsule.start("worker", "host", "--stdio", "--webhook", "0")
    listening = said(host.stderr, "listening")
    second = capsule.start("worker", "host", "--stdio", "--webhook", str(listening["port"]))
    said(second.stderr, "standby")
    second.terminate()
    assert second.wait(60) == 143

    host.stdin.write(b'{"id": "m1", "place": "desk", "text": "Please.", "from": "anna"}\n')
    host.stdin.flush()
    assert said(host.stdout, "received") == {"received": "m1"}
    answer = said(host.stdout, "text")
    assert (answer["text"], answer["place"], answer["from"], answer["inReplyTo"]) == (
        "Done.",
        "desk",
        "helper",
        "m1",
    )

    at, body = int(time.time()), b'{"text": "The build is red."}'
    headers = {
        "webhook-id": "w1",
        "webhook-timestamp": str(at),
        "webhook-signature": sign(secret, "w1", at, body),
    }
    url = f"http://127.0.0.1:{listening['port']}/hooks/ci"
    taken = httpx2.post(url, content=body, headers=headers, timeout=60)
    assert taken.status_code == 200
    assert "no address" in said(host.stderr, "undeliverable")["reason"]
    kinds = [step["kind"] for step in capsule.json("worker", "why", taken.json()["id"])]
    assert {"received", "routed", "claimed", "said", "completed", "undeliverable"} == set(kinds)
    host.stdin.close()
    assert host.wait(60) == 0
