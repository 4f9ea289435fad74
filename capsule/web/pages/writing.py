"""What is written on the page: messages, their changes, and conversations.

What must stay true: a text is sent once under its id, however often it comes; nothing is lost of
what was typed and refused. Messages are written as the agent that the visitor chose, and everything
else is done as the visitor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.responses import Response

from capsule.errors import InvalidInput, Refused
from capsule.format.text.escaping import one_line, truncated
from capsule.ids import new_id
from capsule.messaging.unread import TYPES
from capsule.web.view import AS, ON, View, get, post
from capsule.web.words import address

if TYPE_CHECKING:
    from capsule import Store
    from capsule.format.documents.head import Head
    from capsule.format.tree.branches import Removal

#: How many messages a question about a removal quotes, and how many characters of each.
_MOST_QUOTED: Final = 10
_QUOTED: Final = 60


def _send(view: View) -> Response:
    id, key, content = view.at(), view.sent("id") or new_id(), view.sent("content")
    given = {name: view.sent(name) for name in ("parent", "topic", "reply_to", "seen")}
    fields: dict[str, Any] = {name: value for name, value in given.items() if value}
    if not content.strip():
        raise InvalidInput("there is no text to send")
    try:
        if view.me is not None and view.store.head(id).type in TYPES:
            fields.pop("parent", None)
            sent = view.acting.messages.send(
                content, agent=view.me, conversation=id, idempotency_key=key, **fields
            )
            message = sent.message
        else:
            message = str(view.acting.append_once(id, key, content=content, **fields)[0].id)
    except InvalidInput as error:
        if "came" not in error.fields:
            raise
        return view.refuse(error.message, kind="Meanwhile", button="Send anyway", seen="")
    return view.done(address("c", id, "m", message), id=message)


def _message(view: View) -> Response:
    """The forms that change one message, and what they will do."""
    id = view.at()
    head, entry = view.store.head(id), view.store.find_message(id, view.at("message"))
    history = view.store.document(id)["history"]
    removal = view.store.branches.remove(id, str(entry.id), dry_run=True)
    answers = len(view.store.branches.descendants(id, str(entry.id)))
    is_mail = head.type in TYPES
    may_change = view.visitor.agent in (None, entry.from_)
    ways = ["place"] if is_mail else ["beside", "place"] if answers else ["place", "beside"]
    if not may_change:
        ways.remove("place")
    # Of what others wrote, the form does not know what goes: the answer to it is a question that
    # says so.
    has_others = _has_several_writers(head, history)
    return view.page(
        "message_edit.html",
        head=head,
        entry=entry,
        answers=answers,
        removal=removal,
        sure="" if has_others else _digest(removal.ids),
        is_mail=is_mail,
        may_change=may_change,
        ways=ways,
        is_answer=view.asked("how") == "answer",
    )


def _has_several_writers(head: Head, history: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether more than one agent or person writes in a conversation."""
    return head.type in TYPES or len({entry.get("from") for entry in history}) > 1


def _digest(ids: Iterable[str]) -> str:
    """Return a digest of messages, by which a form names what goes with a removal."""
    return sha256(" ".join(ids).encode()).hexdigest()


def _changing(view: View, id: str, message: str) -> Store:
    """Return the store that changes a message in place: the agent's if it wrote the message, else
    the visitor's.
    """
    is_own = view.store.find_message(id, message).from_ == view.me
    return view.acting if is_own else view.store


def _edit(view: View) -> Response:
    id, message, content = view.at(), view.at("message"), view.sent("content")
    key = view.sent("id") or new_id()
    how = view.sent("how")
    if how == "place":
        made = _changing(view, id, message).edits.message(id, message, content)
    elif how == "beside":
        made = view.acting.branches.revise(id, message, content, key=key)
    elif how == "answer":
        made = view.acting.branches.regenerate(id, content, message, key=key)
    else:
        raise InvalidInput(
            "choose how the message changes: in place, beside it, or as another answer"
        )
    return view.done(address("c", id, "m", str(made.id)), id=made.id)


def _remove(view: View) -> Response:
    id, message = view.at(), view.at("message")
    branches = _changing(view, id, message).branches
    if view.sent("what") == "answers":
        planned = branches.remove(id, message, dry_run=True)
        sure = _digest(planned.ids)
        if view.sent("sure") != sure:
            return view.refuse(
                _going(view, id, planned), button="Remove them", what="answers", sure=sure
            )
        removal = branches.remove(id, message, expected=planned.ids)
    else:
        removal = branches.remove(id, message, keep_children=True)
    entries = view.store.trash.removed(id)
    token = next(
        (each.trashed.token for each in entries if each.messages[0]["id"] in removal.ids), ""
    )
    return view.done(address("trash", token), ids=removal.ids, token=token)


def _going(view: View, id: str, planned: Removal) -> str:
    """Return what a removal takes away, in words."""
    ids = set(planned.ids)
    going = [entry for entry in view.store.document(id)["history"] if entry.get("id") in ids]
    quoted = [
        f"{entry.get('from') or entry['role']}: {truncated(one_line(entry['content']), _QUOTED)!r}"
        for entry in going[:_MOST_QUOTED]
    ]
    if len(going) > _MOST_QUOTED:
        quoted.append(f"and {len(going) - _MOST_QUOTED} more")
    return f"{planned} would go to the trash: {'; '.join(quoted)}."


def _react(view: View) -> Response:
    sent = view.acting.messages.react(view.at("message"), view.sent("emoji"), agent=view.me)
    return view.done(address("c", sent.conversation, "m", sent.message), id=sent.message)


def _switch(view: View) -> Response:
    id = view.at()
    done = view.acting.branches.switch(id, view.sent("message"))
    return view.done(address("c", id, "m", done.leaf), leaf=done.leaf)


def _new(view: View) -> Response:
    content, title, to, tags = (
        view.sent(name).strip() for name in ("content", "title", "to", "tags")
    )
    key = view.sent("id") or new_id()
    if to:
        sent = view.acting.messages.send(content, agent=view.me, to=to, idempotency_key=key)
        return view.done(address("c", sent.conversation, "m", sent.message), id=sent.conversation)
    messages = [{"role": "user", "content": content}] if content else []
    names = list(filter(None, map(str.strip, tags.split(","))))
    head = view.acting.create(title=title or None, tags=names, messages=messages, key=key)
    return view.done(address("c", head.id), id=head.id)


def _head(view: View) -> Response:
    """Change the title, a tag, a mark or a switch: whatever fields there are."""
    id, title, known = view.at(), view.sent("title").strip(), view.sent("instead_of")
    if title and (before := view.store.head(id)).named and before.title not in (title, known):
        question = (
            f"A person gave this conversation the title {before.title!r}. It becomes {title!r}."
        )
        return view.refuse(question, button="Rename", instead_of=before.title)
    tagged, untagged, server = (
        view.sent(name).strip() for name in ("tagged", "untagged", "server")
    )
    view.store.update(
        id,
        title=title or None,
        instead_of=known or None,
        tagged=[tagged] if tagged else (),
        untagged=[untagged] if untagged else (),
        pinned=ON.get(view.sent("pinned")),
        archived=ON.get(view.sent("archived")),
        mcp_servers={server: ON.get(view.sent("on"))} if server else None,
    )
    return view.done(address("c", id))


def _lock(view: View) -> Response:
    id = view.at()
    if view.sent("on") == "yes":
        view.acting.locks.take(id, client="capsule web", agent=view.me)
    else:
        view.acting.locks.release(id)
    return view.done(address("c", id))


def _unlock(view: View) -> Response:
    id = view.at()
    state = view.store.locks.state(view.store.head(id))
    if state is not None and view.sent("sure") != state.instance:
        question = (
            f"{state.name or state.user} on {state.host} holds this lock since "
            f"{state.since}, and may be writing."
        )
        return view.refuse(question, button="Unlock by force", sure=state.instance)
    view.store.locks.release(id, force=True)
    return view.done(address("c", id))


def _delete(view: View) -> Response:
    token = view.store.delete(view.at()).token
    return view.done(address("trash", token), token=token)


def _resolve(view: View) -> Response:
    id, value = view.at(), view.sent("value")
    try:
        chosen = orjson.loads(value) if "value" in view.form else view.sent("text")
    except orjson.JSONDecodeError:
        raise InvalidInput("the field `value` is JSON; put plain text into `text`") from None
    view.store.conflicts.resolve(id, view.sent("field"), chosen)
    return view.done(address("c", id))


def _as(view: View) -> Response:
    if view.visitor.agent is not None:
        raise Refused(
            f"this page was opened for {view.visitor.agent}, and only that agent writes on it",
            path="",
        )
    agent = view.store.agents.get(view.sent("agent")).id if view.sent("agent") else ""
    answer = view.done("/people", agent=agent or None)
    lasts_s = 30 * 86_400 if agent else 0
    view.site.admission.set_cookie(answer, view.site.cookie + AS, agent, lasts_s, view.request)
    return answer


ROUTES = [
    get("/new", lambda view: view.page("new.html")),
    post("/new", _new),
    post("/as", _as),
    post("/c/{id}/messages", _send),
    get("/c/{id}/m/{message:path}/edit", _message),
    post("/c/{id}/m/{message:path}/edit", _edit),
    post("/c/{id}/m/{message:path}/remove", _remove, scope="admin"),
    post("/c/{id}/m/{message:path}/react", _react),
    post("/c/{id}/switch", _switch),
    post("/c/{id}/head", _head),
    post("/c/{id}/lock", _lock),
    post("/c/{id}/unlock", _unlock, scope="admin"),
    post("/c/{id}/delete", _delete, scope="admin"),
    post("/c/{id}/conflicts", _resolve),
]
