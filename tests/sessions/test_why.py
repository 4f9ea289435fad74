"""The way of a message through the files, and a person's word that it is tried again."""

from __future__ import annotations

from capsule.sessions import trace
from capsule.sessions.events import (
    delivered_event,
    outbound_message,
    reply_id,
    routed_event,
    undeliverable_event,
)
from capsule.sessions.rules.messages import (
    after_attempt,
    due_deliveries,
    end_claims,
    number_replies,
    retry_by_hand,
    retry_or_fail,
)
from tests.sessions.files import Files, chat


def test_the_way_of_a_message_is_told_in_the_order_of_time() -> None:
    files, ignoring = Files(), Files()
    ignoring.write_inbound(
        routed_event(message="m1", agent="other", outcome="ignored", reason="no mention")
    )
    files.pass_time(1)
    files.write_inbound(
        routed_event(
            message="m1", agent="helper", outcome="wake", reason="a direct", wiring="c/p/helper"
        )
    )
    files.arrive(chat("m0", route=None), chat("m1", route=None))
    files.finish(files.claim("w1"), "returned", "w1", "exit code 1")
    files.pass_time(1)
    files.write_inbound(*retry_or_fail(files.session_state, files.now, is_alive=lambda _: False))
    files.pass_time(5)
    files.claim("w2")
    answer = outbound_message(id=reply_id("s1", "m0", 0), content="yes", in_reply_to="m0", number=0)
    files.write_outbound(
        *number_replies(
            files.session_state, [answer, outbound_message(id="by itself", content="hm")]
        ),
        *end_claims(files.session_state, ["m0", "m1"], instance="w2", state="completed"),
    )
    (out, _) = due_deliveries(files.session_state, files.now)
    files.write_inbound(
        *after_attempt(files.session_state, out, files.now, error="no route to host")
    )
    files.pass_time(5)
    files.write_inbound(
        delivered_event(message=out.id, platform_id="p1"),
        delivered_event(message="by itself", platform_id="p2"),
    )

    told = [trace.SessionEvents("s2", "other", ignoring.in_events, ignoring.out_events)]
    told.append(trace.SessionEvents("s1", "helper", files.in_events, files.out_events))
    steps = trace.trace_message("m1", told)
    assert [(step.session, step.kind) for step in steps] == [
        ("s2", "ignored"),
        *(("s1", kind) for kind in ("routed", "received", "claimed", "returned", "retry")),
        *(("s1", kind) for kind in ("claimed", "said", "completed", "attempt", "delivered")),
    ]
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    text = "\n".join(step.text for step in steps)
    for words in (
        "no mention",
        "c/p/helper",
        "try 1",
        "w1",
        "exit code 1",
        "try 2",
        "yes",
        "no route",
        "p1",
    ):
        assert words in text
    assert trace.trace_message(answer["id"], told)[0].kind == "received", (
        "the way of an answer is that of what it answers"
    )
    assert trace.trace_message("m2", told) == []
    files.compact()
    left = trace.trace_message(
        "m1", [trace.SessionEvents("s1", "helper", files.in_events, files.out_events)]
    )
    assert [step.kind for step in left] == ["routed", "completed"], (
        "what is left after the files were compacted"
    )


def test_an_answer_that_is_tried_again_in_the_millisecond_in_which_it_failed_stands_behind_that() -> (
    None
):
    files = Files()
    files.arrive(chat("m1"))
    files.claim()
    answer = outbound_message(id=reply_id("s1", "m1", 0), content="yes", in_reply_to="m1", number=0)
    files.write_outbound(
        *number_replies(files.session_state, [answer]),
        *end_claims(files.session_state, ["m1"], instance="w1", state="completed"),
    )
    files.write_inbound(undeliverable_event(message=answer["id"], reason="out of order"))
    files.write_inbound(
        *retry_by_hand(files.session_state, [answer["id"]], files.now),
        delivered_event(message=answer["id"], platform_id="p1"),
    )
    steps = trace.trace_message(
        "m1", [trace.SessionEvents("s1", "helper", files.in_events, files.out_events)]
    )
    assert len({step.at for step in steps}) == 1
    assert [step.kind for step in steps][-4:] == [
        "completed",
        "undeliverable",
        "retry",
        "delivered",
    ]


def test_what_waits_for_its_next_try_is_due_at_once_at_a_persons_word() -> None:
    files = Files()
    files.arrive(chat("m1"))
    files.finish(files.claim(), "returned")
    files.write_inbound(*retry_or_fail(files.session_state, files.now, is_alive=lambda _: False))
    assert files.claim() == []
    files.write_inbound(*retry_by_hand(files.session_state, ["m1"], files.now))
    assert files.claim() == ["m1"]
