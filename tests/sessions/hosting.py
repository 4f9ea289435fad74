"""A host in this process, with workers that are threads, for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from capsule import Store
from capsule.sessions.host.host import Host
from capsule.sessions.registry import AgentSetup, Registry
from capsule.sessions.worker.worker import CommandResult, Prompt, Worker

Answer = Callable[[Prompt], CommandResult]


def echo(prompt: Prompt) -> CommandResult:
    """Answers with what was said."""
    return CommandResult(
        0, "you said: " + ", ".join(message["content"] for message in prompt.messages)
    )


class Thread:
    """A worker that is a thread."""

    pid = 0

    def __init__(
        self, store: Store, session: str, agent: str, answer: Answer, idle_s: float
    ) -> None:
        self._stop = threading.Event()
        self._code = 0

        def run() -> None:
            with store.beside() as mine:
                try:
                    Worker(mine, agent, answer, session=session, idle_s=idle_s).run(self._stop)
                except Exception:
                    self._code = 1

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def wait(self) -> int:
        self._thread.join()
        return self._code

    def terminate(self) -> None:
        self._stop.set()

    kill = terminate


def group(store: Store, agent: str, **settings: Any) -> AgentSetup:
    """Let an agent have workers, whose command was approved here."""
    if agent not in store.agents.names():
        store.agents.register(agent)
    made = AgentSetup(agent, command=("answers",), settings=settings)
    registry = Registry(store.engine)
    registry.edit(lambda state: state.put(made))
    registry.approve(made)
    return made


@contextmanager
def hosting(
    store: Store, answer: Answer = echo, idle_s: float = 0.0, **more: Any
) -> Iterator[tuple[Host, list[Any]]]:
    """A host that runs, and the lines of its log."""
    lines: list[dict[str, Any]] = []
    more = {"spawn": lambda session, agent: Thread(store, session, agent, answer, idle_s)} | more
    host, stop = Host(store, log=lines.append, **more), threading.Event()
    thread = threading.Thread(target=host.run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield host, lines
    finally:
        stop.set()
        thread.join()


def said(store: Store, conversation: str, agent: str) -> list[str]:
    """What an agent said in a conversation."""
    history = store.engine.document("conversations", conversation)["history"]
    return [entry["content"] for entry in history if entry.get("from") == agent]
