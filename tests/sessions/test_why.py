"""The way of a message through the files, and a person's word that it is tried again."""

from __future__ import annotations

import pytest

from capsule.errors import InvalidInput
from capsule.sessions import why
from capsule.sessions.events import ack, delivered, incoming, outgoing, reply_id, retry, routed
from capsule.sessions.rules.deliveries import after_attempt, due_out, send
from capsule.sessions.rules.messages import claim, finish, pick, receive, release, retried
from tests.sessions.files import Files


def hand(files: Files, *ids: str) -> None:
    files.tell(*receive(files.folds, [incoming(id=id, content=f"{id}?") for id in ids]))


def work(files: Files, instance: str, state: str, error: str = "") -> None:
    files.say(*claim(files.folds, pick(files.folds, files.now, first=True), instance))
    ids = list(files.outbound.claims)
    files.say(*finish(files.folds, ids, instance=instance, state=state, error=error))  # type: ignore[arg-type]


def test_the_way_of_a_message_is_told_in_the_order_of_time() -> None:
    files, ignoring = Files(), Files()
    ignoring.tell(routed(message="m1", agent="other", outcome="ignored", reason="no mention"))
    files.pass_time(1)
    files.tell(routed(message="m1", agent="helper", outcome="wake", reason="a direct", wiring="c/p/helper"))
    hand(files, "m0", "m1")
    work(files, "w1", "returned", "exit code 1")
    files.pass_time(1)
    files.tell(*release(files.folds, files.now, is_alive=lambda _: False))
    files.pass_time(5)
    files.say(*claim(files.folds, pick(files.folds, files.now, first=True), "w2"))
    answer = outgoing(id=reply_id("s1", "m0", 0), content="yes", in_reply_to="m0", number=0)
    files.say(
        *send(files.folds, [answer, outgoing(id="by itself", content="hm")]),
        *finish(files.folds, ["m0", "m1"], instance="w2", state="completed"),
    )
    (out, _) = due_out(files.folds, files.now)
    files.tell(*after_attempt(files.folds, out, files.now, error="no route to host"))
    files.pass_time(5)
    files.tell(delivered(message=out.id, platform_id="p1"), delivered(message="by itself", platform_id="p2"))

    told = [why.Files("s2", "other", ignoring.in_events, ignoring.out_events)]
    told.append(why.Files("s1", "helper", files.in_events, files.out_events))
    steps = why.way("m1", told)
    assert [(step.session, step.kind) for step in steps] == [
        ("s2", "ignored"),
        *(("s1", kind) for kind in ("routed", "received", "claimed", "returned", "retry")),
        *(("s1", kind) for kind in ("claimed", "said", "completed", "attempt", "delivered")),
    ]
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    text = "\n".join(step.text for step in steps)
    for words in ("no mention", "c/p/helper", "try 1", "w1", "exit code 1", "try 2", "yes", "no route", "p1"):
        assert words in text
    assert why.way(answer["id"], told)[0].kind == "received", "the way of an answer is that of what it answers"
    assert why.way("m2", told) == []
    files.compact()
    left = why.way("m1", [why.Files("s1", "helper", files.in_events, files.out_events)])
    assert [step.kind for step in left] == ["routed", "completed"], "what is left after the files were compacted"


@pytest.mark.parametrize("by", ["worker", "host"])
def test_a_message_that_failed_is_tried_again_at_a_persons_word_only(by: str) -> None:
    files = Files()
    hand(files, "m1")
    if by == "worker":
        work(files, "w1", "failed", "exit code 65")
        files.say(ack(state="processing", messages={"m1": 0}, instance="w2"))
    else:
        files.tell(retry(messages={"m1": (5, files.now)}, reason="-"))
        work(files, "w1", "returned")
    files.tell(*release(files.folds, files.now, is_alive=lambda _: False))
    files.tell(retry(messages={"m1": (9, files.now)}, reason="not a person"))
    assert files.status("m1") == "failed"
    files.tell(*retried(files.folds, ["m1"], files.now))
    assert files.status("m1") == "pending"
    files.compact()
    work(files, "w2", "completed")
    assert files.status("m1") == "completed"
    with pytest.raises(InvalidInput):
        retried(files.folds, ["m1"], files.now)


def test_what_waits_for_its_next_try_is_due_at_once_at_a_persons_word() -> None:
    files = Files()
    hand(files, "m1")
    work(files, "w1", "returned")
    files.tell(*release(files.folds, files.now, is_alive=lambda _: False))
    assert pick(files.folds, files.now, first=True) == []
    files.tell(*retried(files.folds, ["m1"], files.now))
    assert [message.id for message in pick(files.folds, files.now, first=True)] == ["m1"]
