"""The process of a server: over HTTP from listening at a port to its end, with the events of the store,
and one way out, over stdio and over HTTP.

The id of an event is its durable cursor. A client that reconnects with `Last-Event-ID` misses no
event and gets none twice. The stream sends its cursor also while there are no events.

What must stay true:
- A signal ends the process, whatever clients keep open, and even if one of its threads hangs in a
  call that cannot be cancelled. The locks are released before, unless that takes too long. Safety
  depends on neither: the kernel frees the instance file of a process that has ended, and other
  processes then know that its locks are dead.
- For each batch of events the reader's store is asked for twice, before the wait and before the batch
  is sent. So a reader whose permission has ended gets nothing more.
- This module knows nothing about the application that it serves. It imports no server over HTTP
  before one runs, so that `mcp serve` over stdio starts fast.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NoReturn

import anyio
import anyio.to_thread
import orjson
from anyio.abc import TaskStatus

from capsule.errors import CapsuleError, InvalidInput, Refused
from capsule.watch.events import event_json, topics_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from capsule.engines.changes import Changes
    from capsule.store.store import CoreStore


# -- The end of a process --------------------------------------------------------------------------

_log = logging.getLogger("capsule")

#: The exit code after SIGINT. After SIGTERM, SIGHUP or the end of input it is 0, because a server is
#: stopped that way.
INTERRUPTED = 130
#: Seconds for the release of the locks.
_RELEASE_S = 0.5
_SIGNALS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
    if hasattr(signal, name)
]


def claim_stdio() -> tuple[BinaryIO, int]:
    """Take stdin and stdout for the protocol. Return them.

    From then on, output to descriptor 1 goes to stderr, and a child process gets an empty stdin.
    """
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    try:
        stdin = os.dup(0)
    except OSError:  # The parent process started this one without stdin.
        stdin = os.dup(null)
    stdout = os.dup(1)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:
        os.dup2(null, 1)
    os.close(null)
    return os.fdopen(stdin, "rb"), stdout


async def call_on_signal(
    end: Callable[[int], object], *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Call `end` with the exit code when a signal asks the process to end. A second signal ends it
    at once.
    """
    with anyio.open_signal_receiver(*_SIGNALS) as signals:
        task_status.started()
        is_ending = False
        async for number in signals:
            if is_ending:
                os._exit(128 + number)
            is_ending = True
            end(INTERRUPTED if number == signal.SIGINT else 0)


def run_in_daemon_thread(function: Callable[[], None]) -> threading.Thread:
    """Run a function in a thread that does not keep the process alive. An error is logged."""

    def run() -> None:
        try:
            function()
        except Exception:
            _log.exception("the server did not end properly")

    thread = threading.Thread(target=run, name="capsule-end", daemon=True)
    thread.start()
    return thread


def finish(code: int, close: Callable[[], None]) -> NoReturn:
    """Release the locks and close the stores for at most `_RELEASE_S`, then end the process."""
    run_in_daemon_thread(close).join(_RELEASE_S)
    with suppress(Exception):
        sys.stderr.flush()
    os._exit(code)


# -- A server over HTTP ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """A socket that listens. On loopback only this machine can reach it."""

    socket: socket.socket
    host: str
    port: int
    is_loopback: bool

    @property
    def url(self) -> str:
        """Return its address as clients write it."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def names(self, hosts: Iterable[str], *local: str) -> list[str]:
        """Return the accepted values of the header `Host`. On loopback they keep out a web page
        whose name was made to point here.

        Args:
            hosts: Further names by which clients may call the server.
            local: Further names of loopback, without the port.
        """
        loopback_names = ["127.0.0.1", "localhost", "[::1]", *local] if self.is_loopback else []
        return [
            *(f"{host}:{self.port}" for host in loopback_names),
            *map(str.lower, hosts),
            *(loopback_names if self.port == 80 else []),
        ]


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and the port of `[HOST:]PORT` or `[IPv6]:PORT`. Without a host it is
    loopback.

    Raises InvalidInput: it is not an address.
    """
    match = re.fullmatch(
        r"(?:(?P<host>[^\[\]:]*|\[[0-9A-Fa-f:.]+(?:%[^\[\]]+)?\]):)?(?P<port>[0-9]{1,5})", text
    )
    if match is None or int(match["port"]) > 65535:
        raise InvalidInput(
            f"{text!r} is not an address: write a port, such as 8765, or a host and a port, "
            "such as 127.0.0.1:8765 or [::1]:8765; port 0 takes any free one"
        )
    return (match["host"] or "127.0.0.1").strip("[]"), int(match["port"])


def listen(host: str, port: int) -> ListeningSocket:
    """Listen at a port. 0 is any free port.

    Raises:
        Refused: The port is taken, or not permitted.
        InvalidInput: The host is not an address of this machine.
    """
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidInput(f"the host {host!r} is unknown here: {error.strerror}") from None
    # IPv4 first, where a name such as `localhost` stands for both.
    family, _, _, _, socket_address = min(places, key=lambda address: address[0] != socket.AF_INET)
    try:
        listening = socket.create_server(socket_address[:2], family=family, backlog=128)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise InvalidInput(f"{host} is not an address of this machine") from None
        problem = f"{host}:{port}: could not listen there: {os.strerror(error.errno or 0)}"
        if error.errno == errno.EADDRINUSE:
            problem = (
                f"port {port} of {host} is taken by another program; choose another, or 0 for any"
            )
        raise Refused(problem, path=f"{host}:{port}") from None
    # Connections inherit this option. Without it the body of a response waits 40 ms, until the
    # client has confirmed the head. asyncio sets it only for a socket that names its protocol.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    host, port = listening.getsockname()[:2]
    return ListeningSocket(
        listening, host, port, ipaddress.ip_address(host.partition("%")[0]).is_loopback
    )


async def _do_nothing() -> None:
    pass


def run(
    app: ASGIApp,
    listener: ListeningSocket,
    ready: Callable[[], None],
    close: Callable[[], None],
    *,
    last_s: float,
    background_tasks: Iterable[Callable[[], Coroutine[Any, Any, None]]] = (),
    ending: Callable[[], Coroutine[Any, Any, None]] = _do_nothing,
    **options: Any,
) -> None:
    """Serve until a signal comes, then end the process. Never returns.

    Args:
        app: The application.
        listener: The socket.
        ready: Called when requests are answered.
        close: Releases the locks and closes the stores.
        last_s: Seconds for open requests at the end.
        background_tasks: Tasks that run as long as the server.
        ending: Called when the server ends, before the last requests are answered.
        options: Further options of uvicorn.
    """
    import uvicorn

    class UvicornWithoutSignals(uvicorn.Server):
        """uvicorn without its handling of signals, which raises them again at the end."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    http = UvicornWithoutSignals(
        uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            **options,
        )
    )

    async def serve() -> None:
        codes: list[int] = []
        stopping, stopped = anyio.Event(), anyio.Event()

        def stop(code: int) -> None:
            codes.append(code)
            stopping.set()

        async def listen() -> None:
            await http.serve([listener.socket])
            stopped.set()

        async with anyio.create_task_group() as tasks:
            await tasks.start(call_on_signal, stop)
            tasks.start_soon(listen)
            for work in background_tasks:
                tasks.start_soon(work)
            while not http.started:
                await anyio.sleep(0.005)
            ready()
            await stopping.wait()
            await ending()
            http.should_exit = True
            with anyio.move_on_after(last_s):
                await stopped.wait()
            finish(codes[0], close)

    anyio.run(serve)


# -- The events of a store -------------------------------------------------------------------------

#: Seconds after which a stream without events sends its cursor, to show that it is alive.
BEAT_S: Final = 15.0


async def stream_events(
    store_of: Callable[[], CoreStore], topics: frozenset[str], batch: Changes
) -> AsyncIterator[bytes]:
    """Yield the stream from a batch of changes on, until the store is closed or `store_of` refuses.

    Args:
        store_of: Returns the store that acts for the reader. Called in a thread for each batch.
            Raises
            CapsuleError: the reader has no permission any more.
        topics: The topics, as `check_topics` returns them.
        batch: The changes to begin with.
    """
    while True:
        yield encode_batch(batch, topics)
        try:
            store = await anyio.to_thread.run_sync(store_of)
            batch = await store.await_changes(batch.cursor, timeout_s=BEAT_S)
            # The reader's permission may have ended during the wait.
            await anyio.to_thread.run_sync(store_of)
        except CapsuleError as error:
            _log.warning("a stream of events ended: %s", error)
            return


def encode_batch(batch: Changes, topics: frozenset[str]) -> bytes:
    """Return a batch as bytes of the stream. The last id has no data: it is no event, but the
    position from which a client continues.
    """
    events = [
        b"id: %b\ndata: %b\n\n" % (change.cursor.encode(), orjson.dumps(event_json(change)))
        for change in batch.changes
        if topics.intersection(topics_of(change))
    ]
    return b"".join([*events, b"id: %b\n\n" % batch.cursor.encode()])
