"""The forms that write messages, change them, and create or change conversations.

What must stay true: a message that is sent twice with the same id is written once. A refused form
comes back with its fields, so that no typed text is lost. Messages are written as the agent that the
visitor has chosen. Everything else is done as the visitor.
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
_MAX_QUOTED: Final = 10
_QUOTE_LENGTH: Final = 60


def _send(view: View) -> Response:
    """Send a message to a conversation with members, or append one to another conversation."""
    id = view.path_part()
    key = view.field("id") or new_id()
    content = view.field("content")
    fields: dict[str, Any] = {}
    for name in ("parent", "topic", "reply_to", "seen"):
        if view.field(name):
            fields[name] = view.field(name)
    if not content.strip():
        raise InvalidInput("there is no text to send")
    try:
        if view.acting_agent is not None and view.store.head(id).type in TYPES:
            fields.pop("parent", None)
            sent = view.acting_store.messages.send(
                content, agent=view.acting_agent, conversation=id, idempotency_key=key, **fields
            )
            message = sent.message
        else:
            message = str(view.acting_store.append_once(id, key, content=content, **fields)[0].id)
    except InvalidInput as error:
        if "came" not in error.fields:
            raise
        return view.refuse(error.message, kind="Meanwhile", button="Send anyway", seen="")
    return view.answer_change(address("c", id, "m", message), id=message)


def _message(view: View) -> Response:
    """Show the forms that change one message, with the effect of each."""
    id = view.path_part()
    head = view.store.head(id)
    entry = view.store.find_message(id, view.path_part("message"))
    history = view.store.document(id)["history"]
    removal = view.store.branches.remove(id, str(entry.id), dry_run=True)
    answers = len(view.store.branches.descendants(id, str(entry.id)))
    is_mail = head.type in TYPES
    may_change = view.visitor.agent in (None, entry.from_)
    # In place, or as another branch beside it. The usual way comes first.
    if is_mail:
        ways = ["place"]
    elif answers:
        ways = ["beside", "place"]
    else:
        ways = ["place", "beside"]
    if not may_change:
        ways.remove("place")
    # If others write here, the visitor may not know the answers that are removed too. Without the
    # digest, the form is answered by a question that quotes them.
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
        is_answer=view.parameter("how") == "answer",
    )


def _has_several_writers(head: Head, history: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether more than one agent or person writes in a conversation."""
    return head.type in TYPES or len({entry.get("from") for entry in history}) > 1


def _digest(ids: Iterable[str]) -> str:
    """Return a digest of ids, with which a form names the messages that it removes."""
    return sha256(" ".join(ids).encode()).hexdigest()


def _changing(view: View, id: str, message: str) -> Store:
    """Return the store that changes a message in place.

    It is the store of the chosen agent if this agent wrote the message, or else the visitor's.
    """
    is_own = view.store.find_message(id, message).from_ == view.acting_agent
    return view.acting_store if is_own else view.store


def _edit(view: View) -> Response:
    """Change a message in place, or write another version or another answer."""
    id = view.path_part()
    message = view.path_part("message")
    content = view.field("content")
    key = view.field("id") or new_id()
    how = view.field("how")
    if how == "place":
        changed = _changing(view, id, message).edits.message(id, message, content)
    elif how == "beside":
        changed = view.acting_store.branches.revise(id, message, content, key=key)
    elif how == "answer":
        changed = view.acting_store.branches.regenerate(id, content, message, key=key)
    else:
        raise InvalidInput(
            "choose how the message changes: in place, beside it, or as another answer"
        )
    return view.answer_change(address("c", id, "m", str(changed.id)), id=changed.id)


def _remove(view: View) -> Response:
    """Move a message to the trash: alone, or with its answers after a confirmation."""
    id = view.path_part()
    message = view.path_part("message")
    branches = _changing(view, id, message).branches
    if view.field("what") == "answers":
        planned = branches.remove(id, message, dry_run=True)
        sure = _digest(planned.ids)
        if view.field("sure") != sure:
            return view.refuse(
                _describe_removal(view, id, planned),
                button="Remove them",
                what="answers",
                sure=sure,
            )
        removal = branches.remove(id, message, expected=planned.ids)
    else:
        removal = branches.remove(id, message, keep_children=True)
    entries = view.store.trash.removed(id)
    token = ""
    for entry in entries:
        if entry.messages[0]["id"] in removal.ids:
            token = entry.trashed.token
            break
    return view.answer_change(address("trash", token), ids=removal.ids, token=token)


def _describe_removal(view: View, id: str, planned: Removal) -> str:
    """Return a sentence that quotes the messages of a removal."""
    ids = set(planned.ids)
    removed = [entry for entry in view.store.document(id)["history"] if entry.get("id") in ids]
    quoted = []
    for entry in removed[:_MAX_QUOTED]:
        text = truncated(one_line(entry["content"]), _QUOTE_LENGTH)
        quoted.append(f"{entry.get('from') or entry['role']}: {text!r}")
    if len(removed) > _MAX_QUOTED:
        quoted.append(f"and {len(removed) - _MAX_QUOTED} more")
    return f"{planned} would go to the trash: {'; '.join(quoted)}."


def _react(view: View) -> Response:
    sent = view.acting_store.messages.react(
        view.path_part("message"), view.field("emoji"), agent=view.acting_agent
    )
    return view.answer_change(address("c", sent.conversation, "m", sent.message), id=sent.message)


def _switch(view: View) -> Response:
    id = view.path_part()
    switched = view.acting_store.branches.switch(id, view.field("message"))
    return view.answer_change(address("c", id, "m", switched.leaf), leaf=switched.leaf)


def _new(view: View) -> Response:
    """Send a message to an agent or a channel, or create a conversation."""
    content = view.field("content").strip()
    title = view.field("title").strip()
    to = view.field("to").strip()
    tags = view.field("tags").strip()
    key = view.field("id") or new_id()
    if to:
        sent = view.acting_store.messages.send(
            content, agent=view.acting_agent, to=to, idempotency_key=key
        )
        return view.answer_change(
            address("c", sent.conversation, "m", sent.message), id=sent.conversation
        )
    messages = [{"role": "user", "content": content}] if content else []
    names = list(filter(None, map(str.strip, tags.split(","))))
    head = view.acting_store.create(title=title or None, tags=names, messages=messages, key=key)
    return view.answer_change(address("c", head.id), id=head.id)


def _head(view: View) -> Response:
    """Change the fields of the head that the form has: title, tag, mark, switch of a server."""
    id = view.path_part()
    title = view.field("title").strip()
    replaced_title = view.field("instead_of")
    if title:
        head = view.store.head(id)
        if head.named and head.title not in (title, replaced_title):
            question = (
                f"A person gave this conversation the title {head.title!r}. It becomes {title!r}."
            )
            return view.refuse(question, button="Rename", instead_of=head.title)
    tagged = view.field("tagged").strip()
    untagged = view.field("untagged").strip()
    server = view.field("server").strip()
    view.store.update(
        id,
        title=title or None,
        instead_of=replaced_title or None,
        tagged=[tagged] if tagged else (),
        untagged=[untagged] if untagged else (),
        pinned=ON.get(view.field("pinned")),
        archived=ON.get(view.field("archived")),
        mcp_servers={server: ON.get(view.field("on"))} if server else None,
    )
    return view.answer_change(address("c", id))


def _lock(view: View) -> Response:
    id = view.path_part()
    if view.field("on") == "yes":
        view.acting_store.locks.take(id, client="capsule web", agent=view.acting_agent)
    else:
        view.acting_store.locks.release(id)
    return view.answer_change(address("c", id))


def _unlock(view: View) -> Response:
    id = view.path_part()
    state = view.store.locks.state(view.store.head(id))
    if state is not None and view.field("sure") != state.instance:
        question = (
            f"{state.name or state.user} on {state.host} holds this lock since "
            f"{state.since}, and may be writing."
        )
        return view.refuse(question, button="Unlock by force", sure=state.instance)
    view.store.locks.release(id, force=True)
    return view.answer_change(address("c", id))


def _delete(view: View) -> Response:
    token = view.store.delete(view.path_part()).token
    return view.answer_change(address("trash", token), token=token)


def _resolve(view: View) -> Response:
    """Decide a conflict: by a value in JSON, or by a text."""
    id = view.path_part()
    value = view.field("value")
    try:
        chosen = orjson.loads(value) if "value" in view.form else view.field("text")
    except orjson.JSONDecodeError:
        raise InvalidInput("the field `value` is JSON; put plain text into `text`") from None
    view.store.conflicts.resolve(id, view.field("field"), chosen)
    return view.answer_change(address("c", id))


def _choose_agent(view: View) -> Response:
    """Choose the agent that the owner writes as. An empty name means the owner."""
    if view.visitor.agent is not None:
        raise Refused(
            f"this page was opened for {view.visitor.agent}, and only that agent writes on it",
            path="",
        )
    agent = view.store.agents.get(view.field("agent")).id if view.field("agent") else ""
    answer = view.answer_change("/people", agent=agent or None)
    lasts_s = 30 * 86_400 if agent else 0
    view.site.admission.set_cookie(answer, view.site.cookie + AS, agent, lasts_s, view.request)
    return answer


ROUTES = [
    get("/new", lambda view: view.page("new.html")),
    post("/new", _new),
    post("/as", _choose_agent),
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
