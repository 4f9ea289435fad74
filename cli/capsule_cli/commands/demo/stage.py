"""What the acts of the demo share: printing, checks that end it, and processes that are
kept open.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.output import CommandStopped, escape_controls, print_text

DEADLINE_S = 120


def print_step(text: str) -> None:
    """Tell the person what happens."""
    if text and not global_options.json:
        print_text(escape_controls(text))


def check(fine: bool, otherwise: str) -> None:
    """End the demo unless a check holds. Raises Stopped."""
    if not fine:
        raise CommandStopped(f"the demo failed: {otherwise}")


class Process(subprocess.Popen[str]):
    """A process that is kept open, which answers a line of JSON with another."""

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write a line of JSON to it. Returns: what it answers; nothing when it has ended."""
        assert self.stdin is not None
        self.stdin.write(json.dumps(message) + "\n")
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """The next line that it writes."""
        assert self.stdout is not None
        answer: dict[str, Any] = json.loads(self.stdout.readline() or "{}")
        return answer

    def request(self, method: str, **params: Any) -> Any:
        """Ask it as an MCP client does. Returns: its result."""
        answer = self.ask({"jsonrpc": "2.0", "id": method, "method": method, "params": params})
        while answer and answer.get("id") != method:  # It may tell of a change in between.
            answer = self.hear()
        check("result" in answer, f"the MCP server did not answer {method}")
        return answer["result"]

    def ended(self, expect: int = 0) -> tuple[str, str]:
        """Wait for its end. Returns: what it wrote to stdout, and to stderr."""
        answer, errors = self.communicate(timeout=DEADLINE_S)
        check(
            self.returncode == expect,
            f"{self.args!r} ended with {self.returncode}, not {expect}: {errors}",
        )
        return answer, errors
