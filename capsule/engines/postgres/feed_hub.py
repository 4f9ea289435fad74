"""One reader of the feed for all processes of a machine that use the same store.

Each process that waits for changes has a thread. One of the threads, the leader, has a lock on a
file, reads the feed with the only connection, and listens on a Unix socket. The others, the
followers, connect to it, tell it what they wait for (`Demand`), and get only that. The leader also
renews their leases, so that a process that only waits needs no connection. If the leader's
process ends, the kernel releases its lock, and another thread becomes the leader. Where there is no
such socket (on another system, or in tests), each thread reads the feed itself.

What must stay true:
- A follower whose demand grows, or that gets another leader, may have missed something. It is told
  so by news with a `start`.
- A leader never waits for a follower. One that reads too slowly is cut off, and comes back.
- A leader that hangs is noticed, and its followers read the feed themselves.
- Only the user that owns the directory reaches the socket.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from capsule.engines.changes import Interest
from capsule.engines.postgres.feed_reader import FeedNews, FeedReader, FeedRow

if TYPE_CHECKING:
    from capsule.engines.postgres.database import PostgresDatabase

_log = logging.getLogger("capsule")
#: The names of the files in the directory. The number is the version of the protocol.
_LOCK_NAME = "feed-1.lock"
_SOCKET_NAME = "feed-1.sock"
#: A leader sends something at least so often, and one that sent nothing for so long hangs, in seconds.
_BEAT_S = 10.0
_HANGS_S = 30.0
#: How long to wait for a leader that has the lock and does not listen or answer yet.
_BEGIN_S = 5.0
#: How long to read the feed alone if it did not.
_ALONE_S = 60.0
#: How many connections may wait until the leader accepts them.
_MAX_WAITING = 1024
_RETRY_S = 0.02
#: How often the leader renews the leases that its followers asked for, and how long one waits.
_RENEWAL_INTERVAL_S = 0.5
_RENEWAL_TIMEOUT_S = 3.0
#: The first words of the messages: what a follower wants and what the leader tells it.
_DEMAND, _RENEW = "demand", "renew"
_NEWS, _RENEWED = "news", "renewed"
#: The largest number of bytes that wait for a follower.
_MAX_UNSENT = 4 << 20
#: How long a connection of the database that is not in use stays open in a process that waits.
_IDLE_S = 5.0


class Demand(NamedTuple):
    """What a process waits for.

    Attributes:
        interest: The changes of conversations. None: no changes.
        has_documents: Whether it waits for documents of any kind.
    """

    interest: Interest | None = None
    has_documents: bool = False

    def covers(self, other: Demand) -> bool:
        """Return whether who gets this gets everything that the other demand asks for."""
        if other.has_documents and not self.has_documents:
            return False
        if other.interest is None:
            return True
        return self.interest is not None and self.interest.covers(other.interest)

    def part_of(self, news: FeedNews) -> FeedNews:
        """Return the part of news that is demanded."""
        interest = self.interest
        changes: Sequence[FeedRow] = ()
        if interest is not None and news.changes:
            changes = [row for row in news.changes if interest.includes(row.event, row.id)]
        return news._replace(
            changes=changes, documents=news.documents if self.has_documents else ()
        )


class FeedHub:
    """The thread of a process that waits for changes.

    Args:
        database: The database.
        channel: The channel of the notices.
        directory: The directory of this machine's files of the store. None: share nothing.
        demand: Returns what this process waits for.
        deliver: Takes the news. Is called in the thread.

    Attributes:
        is_following: Whether another process reads the feed for this one.
        is_ready: Set when the first news were delivered.
    """

    def __init__(
        self,
        database: PostgresDatabase,
        channel: str,
        directory: str | None,
        demand: Callable[[], Demand],
        deliver: Callable[[FeedNews], None],
    ) -> None:
        self._database = database
        self._reader = FeedReader(database, channel)
        #: Only Linux has a short name for each path. That of a socket has at most 107 bytes.
        self._directory = directory if sys.platform.startswith("linux") else None
        self._demand = demand
        self._deliver = deliver
        self.is_following = False
        self.is_ready = threading.Event()
        self._is_closed = False
        #: The holder whose leases the leader is to renew, and the names of those that it renewed.
        self._renewal: str | None = None
        self._renewed: set[str] | None = None
        self._is_renewed = threading.Event()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        for end in (self._wake_receiver, self._wake_sender):
            end.setblocking(False)
        #: The open files of the present role, and those that this thread reads for.
        self._files = ExitStack()
        self._followers = _Followers()
        self._selector: selectors.BaseSelector
        self._thread = threading.Thread(target=self._run, name="capsule-feed", daemon=True)
        self._thread.start()

    def update_demand(self) -> None:
        """Have the thread ask for the present demand."""
        with suppress(OSError):  # It has been woken already.
            self._wake_sender.send(b"x")

    def renew_leases(self, holder: str) -> set[str] | None:
        """Have the leader renew the leases of a holder, and return their names.

        Returns None if this process is the leader, or if the leader does not answer: then the
        caller renews them itself. Waits up to three seconds. One thread calls it.
        """
        if not self.is_following:
            return None
        self._renewed = None
        self._is_renewed.clear()
        self._renewal = holder
        self.update_demand()
        self._is_renewed.wait(_RENEWAL_TIMEOUT_S)
        return self._renewed

    def close(self) -> None:
        """End the thread. Another process becomes the leader."""
        self._is_closed = True
        self.update_demand()
        self._thread.join()
        self._wake_receiver.close()
        self._wake_sender.close()

    def close_in_child(self) -> None:
        """Close the copies that a forked child has of the thread's files."""
        _hubs_of_parents.append(self)
        self._close_followers()
        self._files.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    # -- The thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        ended_s = time.monotonic()
        while not self._is_closed:
            with self._files:
                self._selector = self._files.enter_context(selectors.DefaultSelector())
                self._selector.register(self._wake_receiver, selectors.EVENT_READ)
                listener = self._become_leader()
                connection = None if listener is not None else self._connect()
                if listener is not None or self._directory is None:
                    self._lead(listener, None)
                elif connection is not None and self._follow(connection):
                    pass
                elif time.monotonic() > ended_s + _BEGIN_S:
                    self._lead(None, _ALONE_S)
                else:
                    time.sleep(_RETRY_S)
                    continue
            ended_s = time.monotonic()
        self._reader.close()

    def _become_leader(self) -> socket.socket | None:
        """Take the lock, and listen. Returns None if another process has the lock, or if there can
        be no socket.
        """
        if self._directory is None:
            return None
        from capsule.disk import kernel_locks

        try:
            lock_path = os.path.join(self._directory, _LOCK_NAME)
            lock_fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._files.callback(os.close, lock_fd)
            if not kernel_locks.lock(lock_fd):
                return None
            listener = self._files.enter_context(socket.socket(socket.AF_UNIX))
            listener.setblocking(False)
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self._directory, _SOCKET_NAME))
            with _short_path(self._directory) as directory:
                listener.bind(f"{directory}/{_SOCKET_NAME}")
            listener.listen(_MAX_WAITING)
        except OSError as error:
            _log.debug("the feed is not shared: %s", error)
            self._directory = None
            return None
        return listener

    def _connect(self) -> socket.socket | None:
        """Connect to the leader. Returns None if none listens."""
        if self._directory is None:
            return None
        connection = self._files.enter_context(socket.socket(socket.AF_UNIX))
        connection.settimeout(_BEGIN_S)
        try:
            with _short_path(self._directory) as directory:
                connection.connect(f"{directory}/{_SOCKET_NAME}")
        except OSError:
            return None
        connection.setblocking(False)
        return connection

    def _follow(self, connection: socket.socket) -> bool:
        """Pass on what the leader sends, until it ends or hangs, or this thread is closed.

        Returns whether it sent anything.
        """
        channel = _Channel(connection)
        self._selector.register(connection, selectors.EVENT_READ)
        demand: Demand | None = None
        silent_until_s = time.monotonic() + _BEGIN_S
        while not (self._is_closed or channel.is_over):
            if time.monotonic() >= silent_until_s:
                _log.warning("the process of this machine that reads the feed hangs")
                break
            new_demand = self._demand()
            if new_demand != demand:
                is_more = demand is None or not demand.covers(new_demand)
                channel.send(_encode_demand(new_demand, is_more=is_more))
                demand = new_demand
            if self._renewal is not None:
                channel.send(orjson.dumps([_RENEW, self._renewal]))
                self._renewal = None
            is_connected = self._database.close_idle(_IDLE_S)
            pause_s = _IDLE_S if is_connected else _HANGS_S
            self._watch(connection, channel)
            if connection in self._await(pause_s):
                for line in channel.transfer():
                    self.is_following = True
                    silent_until_s = time.monotonic() + _HANGS_S
                    word, *values = orjson.loads(line)
                    if word == _RENEWED:
                        self._renewed = set(values[0])
                        self._is_renewed.set()
                    else:
                        self._deliver(_decode_news(values))
                        self.is_ready.set()
        was_following = self.is_following
        self.is_following = False
        self._deliver(FeedNews())
        return was_following

    def _lead(self, listener: socket.socket | None, duration_s: float | None) -> None:
        """Read the feed for this process and for its followers.

        Args:
            listener: Accepts followers. None: there are none.
            duration_s: End after this time, in seconds. None: when this thread is closed.
        """
        end_s = None if duration_s is None else time.monotonic() + duration_s
        next_read_s = 0.0
        next_renewal_s = 0.0
        news = FeedNews()
        reader_fd: int | None = None
        self.is_following = False
        if listener is not None:
            self._selector.register(listener, selectors.EVENT_READ)
        ready: set[Any] = set()
        while not self._is_closed and (end_s is None or time.monotonic() < end_s):
            if reader_fd in ready or time.monotonic() >= next_read_s:
                news = self._reader.read()
                next_read_s = time.monotonic() + self._reader.pause_s
                self._deliver(news)
                self.is_ready.set()
                for follower in self._followers.concerned(news):
                    follower.tell(news)
                    self._watch(follower.connection, follower.channel)
                self._database.close_idle(_IDLE_S)
            if time.monotonic() >= next_renewal_s:
                self._renew()
                next_renewal_s = time.monotonic() + _RENEWAL_INTERVAL_S
            self._drop_followers()
            if self._reader.fd != reader_fd:
                if reader_fd is not None:
                    self._selector.unregister(reader_fd)
                reader_fd = self._reader.fd
                if reader_fd is not None:
                    self._selector.register(reader_fd, selectors.EVENT_READ)
            ready = self._await(max(next_read_s - time.monotonic(), 0.0))
            for connection in ready & self._followers.by_connection.keys():
                follower = self._followers.by_connection[connection]
                follower.transfer(news)
                self._followers.route(follower)
                self._watch(connection, follower.channel)
            if listener in ready and listener is not None:
                with suppress(OSError):
                    connection, _ = listener.accept()
                    connection.setblocking(False)
                    self._selector.register(connection, selectors.EVENT_READ)
                    self._followers.add(_Follower(connection))
        self._close_followers()
        self._reader.close()

    def _renew(self) -> None:
        """Renew the leases of all followers that asked for it, with one statement."""
        followers = self._followers.by_connection.values()
        asking = {follower.renewal: follower for follower in followers}
        asking.pop(None, None)
        if not asking:
            return
        renewed = self._reader.renew_leases([holder for holder in asking if holder is not None])
        for holder, names in renewed.items():
            asking[holder].renewal = None
            asking[holder].channel.send(orjson.dumps([_RENEWED, names]))

    def _drop_followers(self) -> None:
        """Drop the followers that ended, and those that read too slowly."""
        for follower in [*self._followers.by_connection.values()]:
            if follower.channel.is_over:
                self._selector.unregister(follower.connection)
                self._followers.remove(follower)
                follower.connection.close()

    def _close_followers(self) -> None:
        for connection in self._followers.by_connection:
            connection.close()
        self._followers = _Followers()

    def _watch(self, connection: socket.socket, channel: _Channel) -> None:
        """Wait until a connection can be written too, while something is unsent."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.has_unsent else 0)
        if self._selector.get_key(connection).events != events:
            self._selector.modify(connection, events)

    def _await(self, timeout_s: float) -> set[Any]:
        """Wait for this thread to be woken, or for files. Returns the files that are ready."""
        ready = {key.fileobj for key, _ in self._selector.select(timeout_s)}
        if self._wake_receiver in ready:
            with suppress(BlockingIOError):
                self._wake_receiver.recv(4096)
        return ready


class _Channel:
    """Lines over a socket that does not block."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._unsent = bytearray()
        self._received = bytearray()
        #: Whether the other end has closed it, or reads too slowly.
        self.is_over = False

    @property
    def has_unsent(self) -> bool:
        """Whether a part of what was sent has to wait."""
        return bool(self._unsent)

    def send(self, line: bytes) -> None:
        """Send a line, as soon as the other end reads."""
        self._unsent += line + b"\n"
        self._flush()
        if len(self._unsent) > _MAX_UNSENT:
            self.is_over = True

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.is_over = True

    def transfer(self) -> list[bytes]:
        """Send what can be sent, and return the lines that arrived."""
        self._flush()
        try:
            while data := self._connection.recv(1 << 16):
                self._received += data
            self.is_over = True
        except BlockingIOError:
            pass
        except OSError:
            self.is_over = True
        *lines, rest = self._received.split(b"\n")
        self._received = rest
        return [bytes(line) for line in lines]


class _Follower:
    """Another process that the leader reads for.

    Attributes:
        connection, channel: The connection to it.
        demand: What it waits for.
        renewal: The holder whose leases are to be renewed. None: none are.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.channel = _Channel(connection)
        self.demand = Demand()
        self.renewal: str | None = None

    def transfer(self, last_news: FeedNews) -> None:
        """Take its new demand, and what is to be renewed. If the demand grew, the follower gets what
        follows the last news.
        """
        for line in self.channel.transfer():
            word, *values = orjson.loads(line)
            if word == _RENEW:
                self.renewal = values[0]
                continue
            self.demand, is_more = _decode_demand(values)
            if is_more:
                start = last_news.end if last_news.generation else None
                self._send(FeedNews(last_news.generation, last_news.end, start))

    def tell(self, news: FeedNews) -> None:
        """Send the part of the news that it demands."""
        self._send(self.demand.part_of(news))

    def _send(self, news: FeedNews) -> None:
        # orjson takes no named tuples.
        changes = [[*row] for row in news.changes]
        self.channel.send(
            orjson.dumps([_NEWS, news.generation, news.end, news.start, changes, news.documents])
        )


class _Followers:
    """The followers of a leader, which finds those that wait for a change by its conversation.

    Attributes:
        by_connection: All of them.
    """

    def __init__(self) -> None:
        self.by_connection: dict[socket.socket, _Follower] = {}
        #: Those that wait for changes of a conversation, by whether it is an append, and by its id.
        #: None: of any conversation.
        self._routes: dict[tuple[bool, str | None], set[_Follower]] = {}
        self._routes_of: dict[_Follower, list[tuple[bool, str | None]]] = {}
        self._of_documents: set[_Follower] = set()
        self._next_beat_s = 0.0

    def add(self, follower: _Follower) -> None:
        self.by_connection[follower.connection] = follower

    def route(self, follower: _Follower) -> None:
        """Note what a follower waits for now."""
        self._forget_routes(follower)
        if follower.demand.has_documents:
            self._of_documents.add(follower)
        if follower.demand.interest is None:
            return
        routes: list[tuple[bool, str | None]] = []
        for is_append, ids in enumerate(follower.demand.interest):
            routes += [(bool(is_append), id) for id in ([None] if ids is None else ids)]
        for route in routes:
            self._routes.setdefault(route, set()).add(follower)
        self._routes_of[follower] = routes

    def remove(self, follower: _Follower) -> None:
        del self.by_connection[follower.connection]
        self._forget_routes(follower)

    def _forget_routes(self, follower: _Follower) -> None:
        self._of_documents.discard(follower)
        for route in self._routes_of.pop(follower, ()):
            self._routes[route].discard(follower)
            if not self._routes[route]:
                del self._routes[route]

    def concerned(self, news: FeedNews) -> set[_Follower]:
        """Return the followers that must get the news. Now and then all get them, so that they know
        that the leader does not hang.
        """
        is_beat = time.monotonic() > self._next_beat_s
        if is_beat or not news.generation or news.start is not None:
            self._next_beat_s = time.monotonic() + _BEAT_S
            return {*self.by_connection.values()}
        concerned = {*self._of_documents} if news.documents else set()
        for row in news.changes:
            is_append = row.event == "appended"
            for id in (None, row.id):
                concerned |= self._routes.get((is_append, id), set())
        return concerned


def _decode_news(values: list[Any]) -> FeedNews:
    generation, end, start, changes, documents = values
    return FeedNews(
        generation,
        end,
        start,
        [FeedRow._make(change) for change in changes],
        [(kind, id) for kind, id in documents],
    )


def _encode_demand(demand: Demand, *, is_more: bool) -> bytes:
    """Return a demand as a line. `is_more`: it asks for something that the last one did not."""
    interest = demand.interest
    parts = None
    if interest is not None:
        parts = [None if ids is None else [*ids] for ids in interest]
    return orjson.dumps([_DEMAND, parts, demand.has_documents, is_more])


def _decode_demand(values: list[Any]) -> tuple[Demand, bool]:
    parts, has_documents, is_more = values
    interest = None
    if parts is not None:
        interest = Interest(*(None if ids is None else frozenset(ids) for ids in parts))
    return Demand(interest, has_documents), is_more


@contextmanager
def _short_path(directory: str) -> Iterator[str]:
    """Give a short path of a directory, for the name of a socket in it."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


#: Hubs of a parent process. They are kept, as the finalizer of a connection would end its session.
_hubs_of_parents: list[FeedHub] = []
