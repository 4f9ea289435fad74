"""`Store.watch`: any number of loops, each from its own cursor, none delaying another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

import anyio
import pytest

from capsule import Store
from capsule.engines.changes import Change
from capsule.errors import InvalidInput
from capsule.store import watchers
from capsule.store.watchers import StoreWatchers
from capsule.watch.stream import Watch
from tests.processes import PATIENCE_S, until


async def heard(watch: Watch, enough: Callable[[list[Change]], bool]) -> list[Change]:
    changes: list[Change] = []
    async with asyncio.timeout(PATIENCE_S):
        while not enough(changes):
            changes.append(await anext(watch))
    return changes


def messages(changes: list[Change]) -> list[str]:
    return [message for change in changes for message in change.messages]


def many(count: int) -> Callable[[list[Change]], bool]:
    return lambda changes: len(messages(changes)) >= count


def test_a_watch_from_a_cursor_yields_missed_changes_first(store: Store, other: Store) -> None:
    id = other.create(type="group").id
    cursor = store.changes().cursor
    missed = [str(other.append(id, content=str(number)).id) for number in range(3)]

    async def follow(cursor: str) -> str:
        async with store.watch(cursor) as watch:
            received = messages(await heard(watch, many(3)))
            assert received == missed
            live = str(other.append(id, content="live").id)
            assert messages(await heard(watch, many(1))) == [live]
            return watch.cursor

    cursor = asyncio.run(follow(cursor))
    assert store.changes(cursor).changes == []


def test_a_watch_of_ids_finds_a_change_behind_many_others(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchers, "_MAX_CHANGES", 5)  # So many are read at once.
    cursor = store.changes().cursor
    unwanted = other.create(type="group").id
    for number in range(12):
        other.append(unwanted, content=str(number))
        other.changes()  # Each append becomes a separate change.
    wanted = other.create().id
    assert [
        change.id
        for change in store.wait_for_changes(cursor, ids=[wanted], timeout_s=PATIENCE_S).changes
    ] == [wanted]

    async def follow() -> str:
        return (await anext(store.watch(cursor, ids=[wanted]))).id

    assert asyncio.run(follow()) == wanted


def test_invalid_arguments_are_refused_at_the_call(store: Store) -> None:
    for wrong in [{"since": "no cursor"}, {"ids": "one-text"}, {"ids": ["../x"]}]:
        with pytest.raises(InvalidInput):
            store.watch(**wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            store.wait_for_changes(timeout_s=0, **wrong)  # type: ignore[arg-type]


def test_dozens_of_loops_in_several_threads_get_every_change(store: Store, other: Store) -> None:
    id = other.create(type="group").id
    cursor = store.changes().cursor
    threads, loops, count = 3, 15, 20
    ready = threading.Barrier(threads + 1)
    received: list[list[str]] = []

    async def follow_all() -> None:
        async def follow(watch: Watch) -> None:
            received.append(messages(await heard(watch, many(count))))

        watches = [store.watch(cursor) for _ in range(loops)]
        ready.wait()
        await asyncio.gather(*map(follow, watches))

    running = [threading.Thread(target=lambda: asyncio.run(follow_all())) for _ in range(threads)]
    for thread in running:
        thread.start()
    ready.wait()
    written = [str(other.append(id, content=str(number)).id) for number in range(count)]
    for thread in running:
        thread.join()
    assert received == [written] * (threads * loops)


def test_a_slow_loop_delays_no_other_and_misses_nothing(store: Store, other: Store) -> None:
    id = other.create(type="group").id

    async def follow() -> None:
        slow, quick = store.watch(), store.watch()
        first = str(other.append(id, content="first").id)
        assert messages(await heard(slow, many(1))) == [first]
        # The slow loop does not ask for the next change until the other has all of them.
        written = [str(other.append(id, content=str(number)).id) for number in range(40)]
        assert messages(await heard(quick, many(41))) == [first, *written]
        assert messages(await heard(slow, many(40))) == written

    asyncio.run(follow())


def test_a_cancelled_wait_misses_nothing(store: Store, other: Store) -> None:
    id = other.create(type="group").id

    async def follow() -> None:
        watch = store.watch()
        written: list[str] = []
        received: list[str] = []
        for number in range(60):
            waiting = asyncio.ensure_future(anext(watch))
            written.append(str((await asyncio.to_thread(other.append, id, content=str(number))).id))
            await asyncio.sleep(0)
            if not waiting.done():
                waiting.cancel()
            with suppress(asyncio.CancelledError):
                received += messages([await waiting])
        received += messages(await heard(watch, many(60 - len(received))))
        assert received == written

    asyncio.run(follow())


@pytest.mark.parametrize("make", [asyncio.Event, anyio.Event])
def test_an_event_ends_a_watch(store: Store, make: Callable[[], asyncio.Event]) -> None:
    async def follow() -> list[Change]:
        stop = make()
        watch = store.watch(stop=stop)
        asyncio.get_running_loop().call_soon(stop.set)
        return [change async for change in watch]

    assert asyncio.run(follow()) == []


def test_a_watch_closed_by_another_task_ends(store: Store) -> None:
    async def follow() -> None:
        watch = store.watch()
        waiting = asyncio.ensure_future(anext(watch, None))
        await asyncio.sleep(0)
        await watch.aclose()
        assert await waiting is None
        assert [change async for change in watch] == []

    asyncio.run(follow())


def test_closing_the_store_ends_every_wait() -> None:
    store = Store.in_memory()
    cursor = store.changes().cursor
    polled: list[object] = []
    poll = threading.Thread(target=lambda: polled.append(store.wait_for_changes(cursor).changes))
    poll.start()
    until(
        lambda: (
            store.inner.object_of(StoreWatchers).hub is not None
            and store.inner.object_of(StoreWatchers).hub.running
        )
    )

    async def follow() -> None:
        watches = [asyncio.ensure_future(anext(store.watch(), None)) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.to_thread(store.close)
        assert await asyncio.gather(*watches) == [None] * 3

    asyncio.run(follow())
    poll.join()
    assert polled == [[]]
    assert not [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith(("capsule-watch", "capsule-changes"))
    ]


def test_a_watch_works_in_a_cancel_scope_of_anyio(store: Store, other: Store) -> None:
    async def follow() -> None:
        watch = store.watch()
        with anyio.move_on_after(0.05):
            await anext(watch)
        id = other.create().id
        with anyio.fail_after(PATIENCE_S):
            assert (await anext(watch)).id == id

    anyio.run(follow)


def test_a_long_poll_in_an_event_loop_uses_no_thread(store: Store, other: Store) -> None:
    async def poll() -> None:
        cursor = (await store.await_changes(timeout_s=0.01)).cursor
        polls = [
            asyncio.ensure_future(store.await_changes(cursor, timeout_s=PATIENCE_S))
            for _ in range(50)
        ]
        id = (await asyncio.to_thread(other.create)).id
        for found in await asyncio.gather(*polls):
            assert [change.id for change in found.changes] == [id]
        assert (
            len(
                [
                    thread
                    for thread in threading.enumerate()
                    if thread.name.startswith("capsule-changes")
                ]
            )
            <= 2
        )

    asyncio.run(poll())


def test_a_store_without_a_watch_keeps_no_own_writes_and_no_hub(store: Store) -> None:
    id = store.create(type="group").id
    store.append(id, content="x")
    store.changes()
    assert store.inner.own_writes is None and store.inner.object_of(StoreWatchers).hub is None


def test_the_memory_of_own_writes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from capsule.watch import own_writes

    monkeypatch.setattr(own_writes, "_MAX_WRITES", 3)
    remembered = own_writes.OwnWrites()
    remembered.remember_appended("c", [{"id": str(number)} for number in range(10)])
    changes = [Change("appended", "c", "", "", messages=(str(number),)) for number in range(10)]
    received = remembered.with_own_marked(changes, lambda cursor, messages: cursor)
    assert [change.own for change in received] == [False] * 7 + [True] * 3
