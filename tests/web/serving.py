"""`capsule web` as people start it: a process of its own.

What must stay true: what is served is what the program prints; a process that a test starts has
ended with the test.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2

from tests.core.mcp_server.serving import environment

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

#: Seconds after which waiting for the page fails: a hang is a failure, slowness is not.
PATIENCE_S = 120


class Served:
    """`capsule web` over a store, in a process of its own.

    Args:
        root: The store.
        words: Further words of the command.
        said: Where its standard error goes.
        bases: Gets its addresses, as what pages may load from.
        env: Variables in addition to those of the test.

    Attributes:
        line: What it printed.
        address: What that says: the address with the token that opens the page once.
        base: The address without it, for a browser.
        local: The same for a program, as only browsers find names below `.localhost`.
    """

    #: Starts the program.
    program: Sequence[str] = ("-m", "capsule_cli")

    def __init__(
        self,
        root: Path,
        words: Sequence[str],
        said: Path,
        bases: list[str],
        env: dict[str, str] | None = None,
    ) -> None:
        self.root, self._words, self._said, self._bases = root, words, said, bases
        self._env = environment(**env or {})
        self._client: httpx2.Client | None = None
        self._start(0)

    def _start(self, port: int) -> None:
        where = ["web", "--store", str(self.root), "--port", str(port), "--no-browser"]
        with self._said.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *self.program, *where, *self._words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self._env,
                text=True,
            )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().strip()
        assert self.line, f"capsule web ended with {self.process.wait()}:\n{self.said}"
        self.address = json.loads(self.line)["url"] if "--json" in self._words else self.line
        parts = urlsplit(self.address)
        self.base, self.port = f"{parts.scheme}://{parts.netloc}", parts.port
        self.local = f"{parts.scheme}://127.0.0.1:{parts.port}"
        self._bases.append(f"{self.base}/")

    @property
    def said(self) -> str:
        """What it said on stderr."""
        return self._said.read_text("utf-8", "replace")

    @property
    def client(self) -> httpx2.Client:
        """A client without a browser, with the cookie that the address gives; redirects are not
        followed.
        """
        if self._client is None:
            self._client = httpx2.Client(base_url=self.local, timeout=PATIENCE_S)
            answer = self._client.get(self.address.replace(self.base, self.local))
            assert answer.status_code < 400, answer.text
        return self._client

    def cookies(self) -> list[dict[str, Any]]:
        """The cookies that open the page, as a browser's context takes them."""
        return [
            {"name": each.name, "value": each.value, "url": self.base}
            for each in self.client.cookies.jar
        ]

    def open(self, target: Page | BrowserContext, path: str = "/") -> Page:
        """Open a page of the store: in a page, or in a new one of a context."""
        from playwright.sync_api import BrowserContext

        page = target.new_page() if isinstance(target, BrowserContext) else target
        page.context.add_cookies(self.cookies())  # type: ignore[arg-type]
        answer = page.goto(f"{self.base}{path}", wait_until="domcontentloaded")
        assert answer is not None and answer.status < 400, f"{path}: {answer and answer.status}"
        return page

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait for its end."""
        self.process.kill()
        self._ended()

    def stop(self) -> int:
        """End it as a person does. Returns: its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self._ended()

    def restart(self) -> None:
        """Start it again, at the same port. What is open in browsers stays open,
        with its cookies.
        """
        assert self.process.poll() is not None, "it has not ended"
        self._start(self.port or 0)

    def _ended(self) -> int:
        if self._client is not None:
            self._client.close()
            self._client = None
        code = self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code
