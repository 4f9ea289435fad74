"""What is written on the page: messages, their changes, and conversations.

What must stay true: a text is sent once under its id, however often it comes; nothing is lost of what was typed and
refused. Messages are written as the agent that the visitor chose, and everything else is done as the visitor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.responses import Response
from starlette.routing import Route

from capsule.errors import InvalidInput, NotFound, Refused
from capsule.ids import new_id
from capsule.messaging.mail.unread import TYPES
from capsule.web.view import AS, View, action, page
from capsule.web.words import address

if TYPE_CHECKING:
    from starlette.datastructures import FormData

    from capsule.engines.values import Trashed
    from capsule.store.objects.trash import Removed

#: How many messages a form names that a removal concerns.
_MOST: Final = 1000
_ON: Final = {"yes": True, "no": False}


def _path(view: View, name: str = "id") -> str:
    return str(view.request.path_params[name])


def _send(view: View, form: FormData) -> Response:
    id, key, content = _path(view), view.text(form, "id") or new_id(), view.text(form, "content")
    given = {name: view.text(form, name) for name in ("parent", "topic", "reply_to", "seen")}
    fields: dict[str, Any] = {name: value for name, value in given.items() if value}
    if not content.strip():
        raise InvalidInput("there is no text to send")
    try:
        if view.me is not None and view.store.head(id).type in TYPES:
            fields.pop("parent", None)
            sent = view.acting.messages.send(content, agent=view.me, conversation=id, idempotency_key=key, **fields)
            message = sent.message
        else:
            message = str(view.acting.append_once(id, key, content=content, **fields)[0].id)
    except InvalidInput as error:
        if "came" not in error.fields:
            raise
        return view.refuse(error.message, form, kind="Meanwhile", button="Send anyway", seen="")
    return view.done(address("c", id, "m", message), id=message)


def _message(view: View) -> Response:
    """The forms that change one message, and what they will do."""
    id = _path(view)
    head, entry = view.store.head(id), view.store.find_message(id, _path(view, "message"))
    removal = view.store.branches.remove(id, str(entry.id), dry_run=True)
    answers = len(view.store.branches.descendants(id, str(entry.id)))
    is_mail = head.type in TYPES
    return view.page(
        "message_edit.html",
        head=head,
        entry=entry,
        answers=answers,
        removal=removal,
        expected=" ".join(removal.ids) if len(removal.ids) <= _MOST else "",
        ways=["place"] if is_mail else ["beside", "place"] if answers else ["place", "beside"],
        is_answer=view.asked("how") == "answer",
    )


def _edit(view: View, form: FormData) -> Response:
    id, message, content = _path(view), _path(view, "message"), view.text(form, "content")
    key = view.text(form, "id") or new_id()
    how = view.text(form, "how")
    if how == "place":
        made = view.acting.edits.message(id, message, content)
    elif how == "beside":
        made = view.acting.branches.revise(id, message, content, key=key)
    elif how == "answer":
        made = view.acting.branches.regenerate(id, content, message, key=key)
    else:
        raise InvalidInput("say how the message changes: in its place, beside it, or as another answer")
    return view.done(address("c", id, "m", str(made.id)), id=made.id)


def _remove(view: View, form: FormData) -> Response:
    id = _path(view)
    expected = view.text(form, "expected").split() or None
    removal = view.acting.branches.remove(id, _path(view, "message"), expected=expected)
    entries = view.store.trash.removed(id)
    token = next((each.trashed.token for each in entries if each.messages[0]["id"] in removal.ids), "")
    return view.done(address("trash", token), ids=removal.ids, token=token)


def _react(view: View, form: FormData) -> Response:
    sent = view.acting.messages.react(_path(view, "message"), view.text(form, "emoji"), agent=view.me)
    return view.done(address("c", sent.conversation, "m", sent.message), id=sent.message)


def _switch(view: View, form: FormData) -> Response:
    id = _path(view)
    done = view.acting.branches.switch(id, view.text(form, "message"))
    return view.done(address("c", id, "m", done.leaf), leaf=done.leaf)


def _new(view: View, form: FormData) -> Response:
    content, title, to, tags = (view.text(form, name).strip() for name in ("content", "title", "to", "tags"))
    key = view.text(form, "id") or new_id()
    if to:
        sent = view.acting.messages.send(content, agent=view.me, to=to, idempotency_key=key)
        return view.done(address("c", sent.conversation, "m", sent.message), id=sent.conversation)
    messages = [{"role": "user", "content": content}] if content else []
    names = list(filter(None, map(str.strip, tags.split(","))))
    head = view.acting.create(title=title or None, tags=names, messages=messages, key=key)
    return view.done(address("c", head.id), id=head.id)


def _head(view: View, form: FormData) -> Response:
    """Change the title, a tag, a mark or a switch: whatever fields there are."""
    id, title, known = _path(view), view.text(form, "title").strip(), view.text(form, "instead_of")
    if title and (before := view.store.head(id)).named and before.title not in (title, known):
        question = f"A person gave this conversation the title {before.title!r}. It becomes {title!r}."
        return view.refuse(question, form, button="Rename", instead_of=before.title)
    tagged, untagged, server = (view.text(form, name).strip() for name in ("tagged", "untagged", "server"))
    view.store.update(
        id,
        title=title or None,
        instead_of=known or None,
        tagged=[tagged] if tagged else (),
        untagged=[untagged] if untagged else (),
        pinned=_ON.get(view.text(form, "pinned")),
        archived=_ON.get(view.text(form, "archived")),
        mcp_servers={server: _ON.get(view.text(form, "on"))} if server else None,
    )
    return view.done(address("c", id))


def _lock(view: View, form: FormData) -> Response:
    id = _path(view)
    if view.text(form, "on") == "yes":
        view.acting.locks.take(id, client="capsule web", agent=view.me)
    else:
        view.acting.locks.release(id)
    return view.done(address("c", id))


def _unlock(view: View, form: FormData) -> Response:
    id = _path(view)
    state = view.store.locks.state(view.store.head(id))
    if state is not None and view.text(form, "sure") != state.instance:
        question = (
            f"{state.name or state.user} on {state.host} holds this lock since {state.since}, and may be writing."
        )
        return view.refuse(question, form, button="Unlock by force", sure=state.instance)
    view.store.locks.release(id, force=True)
    return view.done(address("c", id))


def _delete(view: View, form: FormData) -> Response:
    token = view.store.delete(_path(view)).token
    return view.done(address("trash", token), token=token)


def _entry(view: View) -> tuple[Trashed, Removed | None]:
    """What lies in the trash under a token; of messages also what they are."""
    token = _path(view, "token")
    for trashed in view.store.trash.list():
        if trashed.token == token:
            return trashed, None
    for removed in view.store.trash.removed():
        if removed.trashed.token == token:
            return removed.trashed, removed
    raise NotFound("this is not in the trash any more", id=token)


def _trashed(view: View) -> Response:
    trashed, removed = _entry(view)
    title = removed.title if removed else view.store.trash.head(trashed).title
    return view.page("trashed.html", trashed=trashed, removed=removed, title=title)


def _restore(view: View, form: FormData) -> Response:
    trashed, removed = _entry(view)
    if removed is None:
        return view.done(address("c", view.store.trash.restore(trashed.id, trashed).id))
    ids = view.store.trash.restore_messages(trashed)
    return view.done(address("c", trashed.id, *(("m", ids[0]) if ids else ())), ids=ids)


def _resolve(view: View, form: FormData) -> Response:
    id, value = _path(view), form.get("value")
    try:
        chosen = view.text(form, "text") if value is None else orjson.loads(view.text(form, "value"))
    except orjson.JSONDecodeError:
        raise InvalidInput("the field `value` is JSON; a text as it is goes into `text`") from None
    view.store.conflicts.resolve(id, view.text(form, "field"), chosen)
    return view.done(address("c", id))


def _as(view: View, form: FormData) -> Response:
    if view.visitor.agent is not None:
        raise Refused(f"this page was opened for {view.visitor.agent}, and nobody else writes on it", path="")
    agent = view.text(form, "agent")
    answer = view.done("/people", agent=(agent := view.store.agents.get(agent).id) if agent else None)
    is_secure = view.request.url.scheme == "https"
    lasts_s = 30 * 86_400 if agent else 0
    answer.set_cookie(view.site.cookie + AS, agent, max_age=lasts_s, httponly=True, samesite="strict", secure=is_secure)
    return answer


ROUTES = [
    Route("/new", page(lambda view: view.page("new.html"))),
    Route("/new", action(_new), methods=["POST"]),
    Route("/as", action(_as), methods=["POST"]),
    Route("/c/{id}/messages", action(_send), methods=["POST"]),
    Route("/c/{id}/m/{message:path}/edit", page(_message)),
    Route("/c/{id}/m/{message:path}/edit", action(_edit), methods=["POST"]),
    Route("/c/{id}/m/{message:path}/remove", action(_remove, scope="admin"), methods=["POST"]),
    Route("/c/{id}/m/{message:path}/react", action(_react), methods=["POST"]),
    Route("/c/{id}/switch", action(_switch), methods=["POST"]),
    Route("/c/{id}/head", action(_head), methods=["POST"]),
    Route("/c/{id}/lock", action(_lock), methods=["POST"]),
    Route("/c/{id}/unlock", action(_unlock, scope="admin"), methods=["POST"]),
    Route("/c/{id}/delete", action(_delete, scope="admin"), methods=["POST"]),
    Route("/c/{id}/conflicts", action(_resolve), methods=["POST"]),
    Route("/trash/{token}", page(_trashed)),
    Route("/trash/{token}", action(_restore), methods=["POST"]),
]
