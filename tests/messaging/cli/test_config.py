"""`capsule config`: which files it reads, and what its exit codes say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def test_the_exit_code_says_whether_something_is_to_do_or_refused(
    capsule: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, name in ((tmp_path / "api", "reviewer"), (Path.home(), "helper")):
        (folder / ".claude" / "agents").mkdir(parents=True)
        (folder / ".claude" / "agents" / "one.md").write_text(f"---\nname: {name}\n---\n")
    (tmp_path / "api" / "src").mkdir()
    monkeypatch.chdir(tmp_path / "api" / "src")
    (capsule.root / "capsule.toml").write_text("[channels.news]\naccess = 'members'\n")

    planned = capsule.json("config", "plan", expect=1)["actions"]
    assert [(of["kind"], of["on"], of["outcome"]) for of in planned] == [
        ("register", "reviewer", "planned"),
        ("register", "helper", "planned"),
        ("channel", "channel_global_news", "planned"),
    ]
    assert capsule("config", "history").stdout == ""
    done = capsule("config", "apply")
    assert done.stdout.startswith("done\tregister\treviewer\t")
    assert "capsule config rollback 1" in done.stderr
    assert capsule("config", "plan").stdout == ""
    assert [agent["id"] for agent in capsule.json("agent", "list")] == ["helper", "reviewer"]

    (capsule.root / "capsule.toml").write_text("[channels.news]\nmembers = ['nobody']\n")
    (tmp_path / "api" / ".claude" / "agents" / "two.md").write_text(
        "---\nname: x\ndm_policy: opne\n---\n"
    )
    for words in (("plan",), ("apply",)):
        (refused,) = capsule.json("config", *words, expect=6)["actions"]
        assert refused["outcome"] == "refused" and "nobody" in refused["reason"]
    assert "two.md:3:1: dm_policy" in capsule("config", "plan", expect=6).stderr
    (capsule.root / "capsule.toml").write_text("")
    (tmp_path / "api" / ".claude" / "agents" / "two.md").unlink()
    assert "channel_global_news" in capsule("config", "plan", "--prune", expect=1).stdout
    assert (
        capsule("config", "rollback", "1").stdout
        == "done\tchannel\tchannel_global_news\taccess\tmembers\t\t\n"
    )
    assert [each["number"] for each in capsule.json("config", "history")] == [1, 2]
    capsule("config", "plan", "--as", "helper", expect=6)
    capsule("config", "rollback", "9", expect=3)
