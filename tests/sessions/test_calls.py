"""How many of our functions run for a worker's turn, once everything that can be kept is kept."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from threading import Event

from capsule import Store, timestamps
from capsule.ids import new_message_id
from capsule.sessions.events import Route, inbound_message
from capsule.sessions.rules.messages import receive
from capsule.sessions.session import Session
from capsule.sessions.worker.worker import Worker
from tests.messaging.test_calls import calls_of
from tests.sessions.hosting import echo, group

#: The most that they may take; 418 and 42 were reached.
TURN, LOOK = 428, 45


def test_a_worker_runs_few_functions_to_answer_and_to_see_that_there_is_nothing_to_do(
    tmp_path: Path,
) -> None:
    Store.init(tmp_path)
    turns, looks = [], []
    with Store.open(tmp_path) as store:
        group(store, "bot")
        id = store.sessions.registry.ensure_session(
            ("bot", "webhook", "ci", ""), timestamps.now()
        ).id
        host, worker = Session.create(store.engine, id, id), Worker(store, "bot", echo, session=id)
        with store.engine.leases.acquire(f"worker-{id}") as worker._lease:
            for _ in range(8):
                new = [
                    inbound_message(
                        id=new_message_id(),
                        content="hello",
                        sender="anna",
                        route=Route("webhook", "ci"),
                    )
                ]
                host.write_inbound(partial(receive, messages=new))
                turns.append(calls_of(partial(worker._work_on, id, Event())))
                looks.append(calls_of(partial(worker._work_on, id, Event())))
    # The least, as now and then a file is so young that it is read again.
    assert min(turns) <= TURN, turns
    assert min(looks) <= LOOK, looks
