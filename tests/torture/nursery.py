"""Hosts and workers that are killed at random, while the clock that they share jumps.

All of them are children of one process with all modules loaded: it forks a host when one was
killed, and a worker when a host asks for one, so that most of them die in the middle of their work.
What must stay true: it kills only its own children, never one that it has waited for, and has no
Store open while it forks. The time on the wall is the system's and an offset in shared memory, for
all of them alike; waits are shortened, so that a try costs less than a second.
"""

from __future__ import annotations

import logging
import mmap
import os
import random
import select
import signal
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

from capsule import Store, timestamps
from capsule.errors import StoreBusy
from capsule.sessions.adapters import conversations as _loaded  # noqa: F401
from capsule.sessions.host import host as hosts
from capsule.sessions.rules import messages
from capsule.sessions.session import Session
from capsule.sessions.worker import worker
from capsule.sessions.worker.toolkit import Toolkit
from capsule.sessions.worker.worker import CommandResult

#: Hosts at a time: the oldest runs, the others stand by.
_HOSTS = 2
#: The offsets of the clock, in seconds: a time that is later than all times before makes schedules
#: run.
JUMPS_S = (-1800.0, 5400.0)
_ASKING = "asking"


class Clock:
    """The module `time` with a clock on the wall that jumps."""

    def __init__(self) -> None:
        self._offset = mmap.mmap(-1, 8)

    def jump(self, offset_s: float) -> None:
        self._offset[:] = struct.pack("d", offset_s)

    def time_ns(self) -> int:
        return time.time_ns() + int(struct.unpack("d", self._offset)[0] * 1e9)

    def time(self) -> float:
        return self.time_ns() / 1e9

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def rule(self, root: str) -> None:
        """Be the clock of this process, and shorten its waits."""
        timestamps.time = worker.time = self  # type: ignore[attr-defined, assignment]
        beat = Session.record_heartbeat

        def beat_by_this_clock(session: Session) -> None:
            beat(session)
            os.utime(f"{root}/sessions/{session.id}/heartbeat", ns=(self.time_ns(), self.time_ns()))

        Session.record_heartbeat = beat_by_this_clock  # type: ignore[method-assign, assignment]
        messages.FIRST_RETRY_S = messages.FIRST_WAIT_S = 0.25  # type: ignore[assignment]
        messages.MAX_EVENTS = 60
        hosts._STANDBY_S = 0.05
        hosts.LOOK_S = hosts._ELSEWHERE_S = worker._LOOK_S = 1.0


class Forked:
    """A worker, as its host sees it: another process is its parent."""

    def __init__(self, session: str, agent: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
            asked.connect(_ASKING)
            asked.send(f"{session} {agent}".encode())
            number, fds, _, _ = socket.recv_fds(asked, 20, 1)
        self.pid, self._fd = int(number), fds[0]

    def wait(self) -> int:
        select.select([self._fd], [], [])
        return 0

    def terminate(self) -> None:
        signal.pidfd_send_signal(self._fd, signal.SIGTERM)

    def kill(self) -> None:
        signal.pidfd_send_signal(self._fd, signal.SIGKILL)


def _host(root: str) -> None:
    stop, (heard, hears) = threading.Event(), os.pipe()
    # Not `stop.set` in the handler: what it interrupts may hold the lock of the event, as a host
    # that stands by does.
    signal.signal(signal.SIGTERM, lambda *_: os.write(hears, b"."))
    threading.Thread(target=lambda: os.read(heard, 1) and stop.set(), daemon=True).start()
    with Store.open(root) as store:
        hosts.Host(store, spawn=Forked).run(stop)  # type: ignore[arg-type]


def _end(*_: object) -> None:
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # A second one would end the process in the middle of its end.
    raise SystemExit


def _worker(root: str, session: str, agent: str, chance: random.Random) -> None:
    with Store.open(root) as store:

        def answer(prompt: worker.Prompt) -> CommandResult:
            """Names the messages; now and then it is busy, or can't answer at all."""
            said = " ".join(
                f"{each['id']}@{each.get('recurrence', {}).get('at', '')}"
                for each in prompt.messages
            )
            Toolkit(store, prompt.session, prompt.batch).send_message(f"meanwhile {said}")
            time.sleep(chance.uniform(0, 0.02))
            if any("hopeless" in each["content"] for each in prompt.messages):
                return CommandResult(65, reason="it is hopeless")
            return (
                CommandResult(1, reason="it is busy")
                if chance.random() < 0.05
                else CommandResult(0, f"answered {said}")
            )

        # That of a host that was killed lives on here, and may have the session for longer: the
        # host asks again.
        with suppress(StoreBusy):
            worker.Worker(store, agent, answer, session=session, idle_s=0.5).run()


def _fork(act: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        logging.getLogger("capsule").setLevel(logging.ERROR)
        act()
        code = 0
    except SystemExit:
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class Nursery:
    """The parent of all hosts and workers of a store. Args: its directory, and the seed of all
    random choices.
    """

    def __init__(self, root: str, seed: int) -> None:
        self._root = root
        self._chance = random.Random(seed)
        self._clock = Clock()
        self._clock.rule(root)
        self._hosts: list[int] = []
        self._workers: list[int] = []
        self._asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asked.bind(_ASKING)
        self._asked.listen(64)
        self.killed = {"hosts": 0, "workers": 0, "jumps": 0}

    def _serve(self, until: float) -> None:
        """Keep hosts alive and fork the workers that they ask for, until a time of the monotonic
        clock.
        """
        root = self._root
        while (left_s := until - time.monotonic()) > 0:
            while len(self._hosts) < _HOSTS:
                self._hosts.append(_fork(lambda: _host(root)))
            if select.select([self._asked], [], [], min(left_s, 0.05))[0]:
                self._fork_worker()
            for kind, living in (("host", self._hosts), ("worker", self._workers)):
                for pid in living[:]:
                    ended, status = os.waitpid(pid, os.WNOHANG)
                    if ended:
                        living.remove(pid)
                        if status not in (0, signal.SIGKILL):
                            raise AssertionError(
                                f"{kind} {pid} ended by itself: {status}; see above"
                            )

    def _fork_worker(self) -> None:
        asking, _ = self._asked.accept()
        with asking, suppress(OSError):
            if not (words := asking.recv(1000).decode().split()):
                return  # The host that asked is dead.
            seed, root = random.Random(self._chance.getrandbits(32)), self._root
            pid = _fork(lambda: _worker(root, words[0], words[1], seed))
            self._workers.append(pid)
            fd = os.pidfd_open(pid)
            try:
                socket.send_fds(asking, [str(pid).encode()], [fd])
            finally:
                os.close(fd)

    def _kill(self, living: list[int], place: int = 0) -> None:
        pid = living.pop(place)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def torture(self, kills: int, longest_life_s: float, said: Callable[[int], None]) -> None:
        """Kill so many processes, each after a random time, at most so many seconds; `said` is
        called after each.
        """
        for number in range(kills):
            self._serve(time.monotonic() + self._chance.uniform(0, longest_life_s))
            kind = "workers" if self._workers and self._chance.random() < 0.6 else "hosts"
            if kind == "hosts":
                self._kill(self._hosts)
            else:
                self._kill(self._workers, self._chance.randrange(len(self._workers)))
            self.killed[kind] += 1
            if self._chance.random() < 0.1:
                self._clock.jump(self._chance.uniform(*JUMPS_S))
                self.killed["jumps"] += 1
            said(number)

    def calm(self, is_over: Callable[[], bool]) -> None:
        """Kill nothing more, and let the clock be later than ever, until it is over;
        then end all.
        """
        self._clock.jump(JUMPS_S[1])
        while not is_over():
            self._serve(time.monotonic() + 0.2)
        for pid in self._hosts:
            os.kill(pid, signal.SIGTERM)
        for pid in self._hosts + self._workers:
            os.waitpid(pid, 0)
        self._hosts, self._workers = [], []

    def close(self) -> None:
        """Kill what still lives."""
        self._asked.close()
        for living in (self._hosts, self._workers):
            while living:
                self._kill(living)


def run(
    root: str, seed: int, kills: int, longest_life_s: float, say: Callable[[Any], None], stdin: int
) -> None:
    """Torture a store: says each kill, waits for a line, ends all, and says how many it killed."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, _end)  # Of workers too, from their first instant on.
    with closing(Nursery(root, seed)) as nursery:
        nursery.torture(kills, longest_life_s, say)
        killing_s = time.monotonic() - began
        nursery.calm(lambda: bool(select.select([stdin], [], [], 0)[0]))
    say(nursery.killed | {"killing_s": round(killing_s), "all_s": round(time.monotonic() - began)})
