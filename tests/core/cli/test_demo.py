"""`demo`: the real commands, as a user runs it."""

from __future__ import annotations

import re
from typing import Any

import pytest


@pytest.mark.slow
def test_the_demo_ends_with_as_many_messages_in_the_file_as_were_acknowledged(capsule: Any) -> None:
    process = capsule.start("store", "demo")
    stdout, stderr = (data.decode() for data in process.communicate())
    numbers = re.search(r"^(\d+) messages acknowledged, (\d+) in the file$", stdout, re.M)
    assert numbers and numbers[1] == numbers[2] and int(numbers[1]) > 100
    for words in (
        "(exit code 4)",
        "kill -9",
        "12345678901234567890123",
        "all is well",
        "2 from ada, bob in",
        "wakes eve",
        "heard by rosa: vet: All sheep are well.",
        "the page lists the conversation",
    ):
        assert words in stdout
    assert stderr == "" and process.returncode == 0
    assert capsule.json("list") == [], "the demo has a store of its own"
