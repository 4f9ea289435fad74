"""What becomes of what the worker says: where it goes, when it is tried again, what is told about
it.
"""

from __future__ import annotations

from typing import Any

import pytest

from capsule.errors import InvalidInput, Refused
from capsule.sessions.events import (
    Route,
    cancelled_event,
    destinations_event,
    outbound_message,
    reply_id,
    routing_event,
)
from capsule.sessions.rules.messages import (
    add_seconds,
    after_attempt,
    delivery_id,
    due_deliveries,
    next_delivery,
    number_replies,
    numbered,
    retry_by_hand,
    retry_or_fail,
    route_of,
)
from capsule.sessions.session_state import OutboundMessage
from tests.sessions.files import ROUTE, START, Files, chat

OPS = Route("webhook", "ops", "t1")
DEFAULT = Route("stdio", "main")


def files_with(*messages: Any) -> Files:
    files = Files()
    files.arrive(chat("m1"), chat("m2", route=None))
    files.write_inbound(destinations_event(destinations={"ops": OPS.as_json()}))
    files.write_outbound(*number_replies(files.session_state, messages))
    return files


def due(files: Files) -> list[str]:
    return [message.id for message in due_deliveries(files.session_state, files.now)]


def deliver(files: Files, **result: Any) -> OutboundMessage:
    message = due_deliveries(files.session_state, files.now)[0]
    files.write_inbound(
        *numbered(
            files.session_state, after_attempt(files.session_state, message, files.now, **result)
        )
    )
    return message


@pytest.mark.parametrize(
    ("fields", "default", "to"),
    [
        ({"to": "ops"}, None, OPS),
        ({"to": "ops", "thread": "t2"}, DEFAULT, Route("webhook", "ops", "t2")),
        ({"in_reply_to": "m1"}, DEFAULT, ROUTE),
        ({"in_reply_to": "m1", "thread": "t2"}, DEFAULT, Route("conversations", "team", "t2")),
        ({"in_reply_to": "m1", "to": "ops"}, DEFAULT, OPS),
        ({"in_reply_to": "m2"}, DEFAULT, DEFAULT),
        ({}, DEFAULT, DEFAULT),
        ({}, None, None),
    ],
)
def test_a_message_goes_to_its_destination_else_back_else_by_default(
    fields: dict[str, Any], default: Route | None, to: Route | None
) -> None:
    files = files_with(outbound_message(id="o1", **fields))
    if default:
        files.write_inbound(routing_event(route=default))
    message = due_deliveries(files.session_state, START)[0]
    if to:
        assert route_of(files.session_state, message) == to
    else:
        with pytest.raises(Refused):
            route_of(files.session_state, message)


def test_an_answer_still_goes_back_after_its_message_is_done_and_the_file_was_compacted() -> None:
    files = files_with()
    files.finish(files.claim())
    files.write_outbound(
        *number_replies(files.session_state, [outbound_message(id="o1", in_reply_to="m1")])
    )
    files.compact()
    assert route_of(files.session_state, files.outbound.messages["o1"]) == ROUTE


@pytest.mark.parametrize("is_compacted", [False, True])
def test_nothing_is_said_twice_and_each_session_has_ids_of_its_own(is_compacted: bool) -> None:
    assert (
        len(
            {
                reply_id(session, id, number)
                for session in "ab"
                for id in ("m1", "m2")
                for number in (0, 1)
            }
        )
        == 8
    )
    said = outbound_message(id=reply_id("s1", "m1", 0), content="Yes", in_reply_to="m1")
    files = files_with(said, said)
    assert [message.seq for message in files.outbound.messages.values()] == [5]
    deliver(files, platform_id="p1")
    if is_compacted:
        files.compact()
        assert not files.outbound.messages
    assert number_replies(files.session_state, [said]) == []
    assert due(files) == []


def test_what_is_for_later_is_delivered_later() -> None:
    files = files_with(
        outbound_message(id="o1", deliver_after="2026-11-22T14:31:00+01:00"),
        outbound_message(id="o2"),
    )
    assert due(files) == ["o2"]
    assert next_delivery(files.session_state, START) == START
    deliver(files, platform_id="p2")
    assert next_delivery(files.session_state, START) == add_seconds(START, 60)
    files.pass_time(60)
    assert due(files) == ["o1"]
    with pytest.raises(InvalidInput):
        outbound_message(id="o3", deliver_after="soon")


@pytest.mark.parametrize("is_compacted", [False, True])
def test_three_attempts_and_then_the_worker_is_told(is_compacted: bool) -> None:
    files = files_with(outbound_message(id="o1", in_reply_to="m1"))
    for wait in (5, 10):
        deliver(files, error="no network")
        assert due(files) == []
        if is_compacted:
            files.compact()
        assert next_delivery(files.session_state, files.now) == add_seconds(files.now, wait)
        files.pass_time(wait)
    deliver(files, error="no network")
    assert next_delivery(files.session_state, files.now) is None
    assert files.inbound.undeliverable == {"o1": "no network"}
    assert files.claim() == ["m1", reply_id("s1", "o1", "undeliverable: no network")]


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_person_has_it_delivered_after_all(is_compacted: bool) -> None:
    files = files_with(outbound_message(id="o1"), outbound_message(id="o2"))
    deliver(files, error="no network", is_final=True)
    files.write_inbound(*retry_by_hand(files.session_state, ["o1"], files.now))
    if is_compacted:
        files.compact()
    assert due(files) == ["o1", "o2"]
    deliver(files, error="still none", is_final=True)
    assert due(files) == ["o2"]
    files.write_inbound(*retry_by_hand(files.session_state, ["o1"], files.now))
    deliver(files, platform_id="p1")
    assert (due(files), files.inbound.delivered["o1"]) == (["o2"], "p1")
    with pytest.raises(InvalidInput):
        retry_by_hand(files.session_state, ["o1"], files.now)
    deliver(files, error="no network")
    files.write_inbound(*retry_by_hand(files.session_state, ["o2"], files.now))
    assert due(files) == ["o2"], "what waits for its next attempt is due now"


def test_a_notice_to_the_worker_wakes_nobody() -> None:
    files = files_with(outbound_message(id="o1"))
    files.finish(files.claim())
    files.finish(files.claim())
    deliver(files, error="refused", is_final=True)
    assert files.claim() == []


def test_what_was_delivered_keeps_the_id_that_it_got() -> None:
    files = files_with(
        outbound_message(id="o1"), outbound_message(id="o2", kind="edit", target="o1", content="No")
    )
    assert due(files) == ["o1"]
    deliver(files, platform_id="p1")
    files.compact()
    assert due(files) == ["o2"]
    assert files.inbound.delivered["o1"] == "p1"


@pytest.mark.parametrize("result", [{"platform_id": "p1"}, {"error": "gone", "is_final": True}])
def test_a_recurring_message_is_delivered_again_under_another_id(result: dict[str, Any]) -> None:
    files = files_with(outbound_message(id="o1", recurrence={"cron": "31 13 * * *"}))
    assert next_delivery(files.session_state, files.now) == add_seconds(START, 60)
    files.pass_time(60)
    ids = []
    for _ in range(3):
        message = due_deliveries(files.session_state, files.now)[0]
        ids.append(delivery_id(files.session_state, message))
        deliver(files, **result)
        assert due(files) == []
        files.compact()
        files.pass_time(24 * 3600)
    assert len(set(ids)) == 3
    assert due(files) == ["o1"]
    files.write_inbound(cancelled_event(messages=["o1"]))
    files.compact()
    assert next_delivery(files.session_state, files.now) is None


def test_a_clock_that_goes_back_does_not_hold_up_an_attempt() -> None:
    files = files_with(outbound_message(id="o1"))
    deliver(files, error="no network")
    assert due_deliveries(files.session_state, add_seconds(START, -3600))


# What a sender is told about a message that failed.


def give_up(files: Files) -> None:
    files.finish(files.claim(), "failed", error="exit code 65")
    files.write_inbound(*retry_or_fail(files.session_state, files.now, is_alive=lambda _: True))


def test_the_sender_of_a_message_that_failed_is_told_once() -> None:
    files = Files()
    files.arrive(chat("m1", hops=2), chat("m2"), chat("m3", trigger="accumulate"))
    give_up(files)
    assert retry_or_fail(files.session_state, files.now, is_alive=lambda _: True) == []
    files.compact()
    notice = deliver(files, error="no network")
    files.compact()
    files.pass_time(5)
    assert deliver(files, platform_id="p1") == notice
    assert (notice.in_reply_to, notice.event["hops"], route_of(files.session_state, notice)) == (
        "m1",
        3,
        ROUTE,
    )
    assert "exit code 65" in notice.event["content"]
    files.compact()
    assert (due(files), files.inbound.messages) == ([], {})


@pytest.mark.parametrize("is_compacted", [False, True])
def test_each_sender_of_a_batch_that_failed_is_told_with_its_messages_and_a_way_to_retry(
    is_compacted: bool,
) -> None:
    files = Files()
    senders = {"m1": "anna", "m2": "bob", "m3": "anna", "m4": "carol"}
    files.arrive(*(chat(id, sender=sender) for id, sender in senders.items()))
    give_up(files)
    if is_compacted:
        files.compact()
    notices = due_deliveries(files.session_state, files.now)
    assert [notice.in_reply_to for notice in notices] == ["m1", "m2", "m4"]
    for notice, ids in zip(notices, (["m1", "m3"], ["m2"], ["m4"]), strict=True):
        commands = [
            line
            for line in notice.event["content"].splitlines()
            if line.startswith("capsule worker retry")
        ]
        assert commands == [f"capsule worker retry {id}" for id in ids]
    assert files.inbound.failures == {"anna": (2, 0), "bob": (1, 0), "carol": (1, 0)}
    deliver(files, platform_id="p1")
    deliver(files, error="refused", is_final=True)
    files.compact()
    assert files.inbound.failures == {"anna": (2, 2), "bob": (1, 0), "carol": (1, 0)}
    assert [notice.in_reply_to for notice in due_deliveries(files.session_state, files.now)] == [
        "m4"
    ]


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_notice_does_not_name_a_message_that_a_person_has_tried_again(is_compacted: bool) -> None:
    files = Files()
    files.arrive(chat("m1", sender="anna"), chat("m2", sender="anna"))
    give_up(files)
    before = due_deliveries(files.session_state, files.now)[0]
    files.write_inbound(*retry_by_hand(files.session_state, ["m1"], files.now))
    if is_compacted:
        files.compact()
    (notice,) = due_deliveries(files.session_state, files.now)
    assert notice.in_reply_to == "m2" and "m1" not in notice.event["content"]
    assert notice.id != before.id, "a notice that says something else has another id"
    give_up(files)
    assert [each.in_reply_to for each in due_deliveries(files.session_state, files.now)] == [
        "m1",
        "m2",
    ]
    assert files.inbound.failures == {"anna": (3, 0)}


def test_a_notice_that_does_not_arrive_is_no_matter_of_the_worker() -> None:
    files = Files()
    files.arrive(chat("m1"), chat("m2", route=OPS))
    give_up(files)
    give_up(files)
    assert len(due(files)) == 2
    deliver(files, error="refused", is_final=True)
    assert (len(due(files)), len(files.inbound.messages)) == (1, 2)
