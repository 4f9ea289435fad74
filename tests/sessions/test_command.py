"""Running a worker's command, with real processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from capsule.sessions.worker.worker import CommandResult, run_command
from tests.processes import Child, until


def ran(*words: str, input_text: str = "", **more: Any) -> CommandResult:
    options: dict[str, Any] = {
        "folder": None,
        "limit_s": 60,
        "max_bytes": 10_000_000,
        "continuation_variable": "HAND",
        "on_output": lambda: None,
    }
    return run_command(words, input_text, dict(os.environ), **options | more)


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


def test_more_than_a_pipe_holds_goes_in_and_comes_out() -> None:
    text = "éa" * 500_000
    reads: list[None] = []
    assert ran("cat", input_text=text, on_output=lambda: reads.append(None)) == CommandResult(
        0, text
    )
    assert reads


def test_a_command_that_reads_nothing_is_no_failure() -> None:
    assert ran("echo", "done", input_text="x" * 1_000_000) == CommandResult(0, "done\n")


@pytest.mark.parametrize(
    ("script", "code", "out", "reason"),
    [
        ("printf 'a\\377b'", 0, "a\ufffdb", ""),
        ("echo no >&2; exit 3", 3, "", "exit code 3: no"),
        ("kill -9 $$", -9, "", "ended by SIGKILL"),
        ("kill -40 $$", -40, "", "ended by signal 40"),
        ("exec >&- 2>&-; sleep 0.1; exit 4", 4, "", "exit code 4"),
        ("yes", 65, "", "it wrote more than 10000000 bytes"),
        ("echo said; sleep 100 & exit 0", 0, "said\n", ""),
    ],
)
def test_how_a_command_ends(script: str, code: int, out: str, reason: str) -> None:
    assert ran("sh", "-c", script) == CommandResult(code, out, reason)


def test_a_command_that_is_not_there_says_so_and_so_does_a_folder() -> None:
    missing = ran("no-such-program")
    assert missing.code == 127 and "no-such-program" in missing.reason
    assert "/no/such/folder" in ran("true", folder="/no/such/folder").reason


def test_what_a_command_hands_back_stands_apart_from_what_it_answers() -> None:
    assert ran("sh", "-c", 'echo answer; printf id-1 > "$HAND"') == CommandResult(
        0, "answer\n", continuation="id-1"
    )


def test_a_command_reads_what_it_handed_back_and_the_last_word_counts() -> None:
    script = 'cat "$HAND"; printf id-1 > "$HAND"; cat "$HAND"; printf id-2 > "$HAND"'
    assert ran("sh", "-c", script, limit_s=10) == CommandResult(0, "id-1", continuation="id-2")


def test_a_command_over_its_time_gets_sigterm_with_all_that_it_started() -> None:
    script = 'trap "echo stopped; exit 0" TERM; sleep 100 & echo $!; wait'
    for limit_s in (0.5, 5, 50):  # A loaded machine needs longer to start what is to be stopped.
        if (result := ran("sh", "-c", script, limit_s=limit_s)).output:
            break
    pid, word = result.output.split()
    assert (word, result.reason) == ("stopped", f"it took longer than {limit_s} s")
    until(lambda: gone(int(pid)))


@pytest.mark.skipif(not os.path.exists("/proc"), reason="reads /proc")
def test_a_worker_that_is_killed_takes_its_command_along_and_what_that_started(
    tmp_path: Path,
) -> None:
    child = Child(
        """
        from capsule.sessions.worker.worker import run_command
        script = 'trap "" TERM HUP; sleep 100 & echo $$ $! > "$0"; echo; exec sleep 100'
        words = ["sh", "-c", script, sys.argv[1]]
        run_command(words, "", os.environ, folder=None, limit_s=60, max_bytes=1000,
            continuation_variable="HAND", on_output=say)
        """,
        str(tmp_path / "pids"),
    )
    try:
        child.hear()
        pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
        child.kill()
        until(lambda: all(gone(pid) for pid in pids))
    finally:
        child.close()


@pytest.mark.parametrize(
    "script", ["printf 'a\\0b'", "printf ab; head -c 60000 /dev/zero | tr '\\0' '\\377'"]
)
def test_what_a_command_hands_on_fits_into_the_environment_of_the_next(script: str) -> None:
    handed = ran("sh", "-c", f"({script}) > $HAND").continuation
    assert handed == "ab"
    more: dict[str, Any] = {
        "folder": None,
        "limit_s": 60,
        "max_bytes": 10,
        "continuation_variable": "HAND",
        "on_output": lambda: None,
    }
    assert run_command(["true"], "", {"NEXT": handed}, **more).code == 0
