"""`demo`: the real commands, as a user runs it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_the_demo_ends_with_as_many_messages_in_the_file_as_were_acknowledged(capsule: Any) -> None:
    answer = capsule.process("demo")
    told = re.search(r"^(\d+) messages acknowledged, (\d+) in the file$", answer.stdout, re.M)
    assert told
    assert told[1] == told[2]
    assert int(told[1]) > 100
    assert "(exit code 4)" in answer.stdout
    assert "kill -9" in answer.stdout
    assert "12345678901234567890123" in answer.stdout
    assert "all is well" in answer.stdout
    assert answer.stderr == ""
    assert capsule.json("list") == [], "the demo has a store of its own"


@pytest.mark.sample
def test_the_demo_with_json_prints_the_numbers_alone(capsule: Any) -> None:
    told = json.loads(capsule.process("demo", "--json").stdout)
    assert told["ok"] is True
    assert told["acknowledged"] == told["inFile"]
