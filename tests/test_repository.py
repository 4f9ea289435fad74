"""This repository is a store, with settings and the sample conversations of the README."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from capsule import settings, timestamps
from capsule.format import migrations, validation
from capsule.format.json import canonical, codec

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = sorted((ROOT / "conversations").glob("*.json"))


def document_in(path: Path) -> dict[str, Any]:
    return codec.decode(path.read_bytes(), str(path))


def test_the_settings_are_those_of_a_new_store() -> None:
    text = (ROOT / "capsule.toml").read_bytes()
    assert settings.parse(text, "capsule.toml") == settings.Settings()
    assert text.decode() == settings.TEMPLATE


def test_the_samples_are_of_several_kinds() -> None:
    kinds = {
        (about.get("type", "chat"), about["isSummary"])
        for about in (document_in(path)["metadata"] for path in SAMPLES)
    }
    assert kinds >= {("chat", False), ("group", False), ("chat", True)}


def test_committed_pages_equal_the_generated_ones() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_sample_is_valid_canonical_and_current() -> None:
    for path in SAMPLES:
        data, document = path.read_bytes(), document_in(path)
        validation.check(document, data, str(path))
        assert validation.oddities(document, str(path), data) == []
        assert migrations.upgrade(document) == (document, [])
        assert codec.encode(canonical.in_order(document)) == data
        assert uuid.UUID(document["id"]).version == 4 and document["id"] == path.stem
        assert not document["metadata"]["lock"]["active"]
        times = [message["timestamp"] for message in document["history"]]
        assert times == sorted(times) and document["updatedAt"] >= times[-1]
        for message in document["history"]:
            number = uuid.UUID(message["id"])
            assert number.version == 7
            made_ms = round(timestamps.parse(message["timestamp"]).timestamp() * 1000)
            assert abs((number.int >> 80) - made_ms) <= 1


def test_every_summary_names_a_conversation_of_this_store() -> None:
    ids = {path.stem for path in SAMPLES}
    for path in SAMPLES:
        about = document_in(path)["metadata"]
        assert not about["isSummary"] or about["sourceConversationId"] in ids
