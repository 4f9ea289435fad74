"""The adapters of other programs: messages as lines of JSON on two streams, and by signed HTTP.

`StdioAdapter` is for tests, and for a program that runs a host as its child. Each line that comes in
is one message. It is answered by a line with its id, or with an error. A message that goes out is one
line too. The module gets both streams from its caller.

`WebhookAdapter` takes and sends messages that are signed by the Standard Webhooks specification 1.0.0
(standardwebhooks.com): HMAC-SHA256 over `id.timestamp.body`. A webhook is a place with a name, a
secret, and perhaps an address that messages are sent to. It is a document of a local kind, so no
clone brings one. Requests come to `/hooks/NAME`. A request is verified, parsed and given to the host,
and its response has the id of the message or an error. The module knows neither sessions nor when a
delivery is tried again.

What must stay true:
- A line or a request is acknowledged with its id when its message is durable, and not before.
- The same one again changes nothing if it has an id. Another content under the id is an error.
- A line that cannot be taken is answered with an error, and the next one is read.
- Nothing in a request is used before its signature is verified, in a comparison of constant time.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from capsule import timestamps
from capsule.errors import CapsuleError, InvalidInput, NotFound, Refused
from capsule.ids import keyed_message_id, new_message_id
from capsule.messaging import doorbells
from capsule.sessions.adapters.interface import Adapter, OutgoingMessage, ReceivedMessage, Receiver

if TYPE_CHECKING:
    import socket

    from starlette.requests import Request
    from starlette.responses import Response

    from capsule.engines.interface import Engine
    from capsule.engines.local_documents import LocalDocuments


# -- Lines of JSON ---------------------------------------------------------------------------------

#: The fields of a message that must be texts if they exist.
_TEXT_FIELDS = ("id", "place", "thread", "from", "text", "title", "inReplyTo", "at")
#: Messages may come through fewer agents than this.
_MAX_HOPS = 1000


class StdioAdapter(Adapter):
    """The adapter of the channel `stdio`. A line names its place, or else its place is `stdio`.

    Args:
        lines: Gives the lines that come in. It ends when no more will come.
        write: Writes a line with its newline.
        on_end: Called when no more lines will come.
    """

    name = "stdio"

    def __init__(
        self, lines: Iterable[bytes], write: Callable[[bytes], object], on_end: Callable[[], object]
    ) -> None:
        self._lines = lines
        self._write = write
        self._on_end = on_end
        self._lock = threading.Lock()

    def start(self, receiver: Receiver) -> None:
        """Read lines until their end, in a thread of its own. Raises nothing."""
        # A read cannot be interrupted, so the thread must not keep the process alive.
        threading.Thread(
            target=self._read_lines, args=(receiver,), name="stdio", daemon=True
        ).start()

    def deliver(self, out: OutgoingMessage) -> str:
        """Write a message as a line, and return its id. The reader drops an id that comes again.

        Raises OSError.
        """
        self._write_line(as_json(out))
        return out.id

    def stop(self) -> None:
        """Do nothing. The thread ends with its stream."""

    def _read_lines(self, receiver: Receiver) -> None:
        try:
            for line in filter(bytes.strip, self._lines):
                self._write_line(self._answer_line(receiver, line))
        except OSError:
            pass  # Nobody reads the answers any more, so nobody sends lines either.
        finally:
            self._on_end()

    def _answer_line(self, receiver: Receiver, line: bytes) -> dict[str, Any]:
        """Give the message of a line to the host, and return the answer to the line."""
        try:
            received = parse_message(line, channel=self.name, place=self.name, id=new_message_id())
            receiver.receive([received])
        except CapsuleError as error:
            return {"error": error.message, "code": error.exit_code}
        return {"received": received.id}

    def _write_line(self, value: Mapping[str, Any]) -> None:
        with self._lock:
            self._write(orjson.dumps(value) + b"\n")


def parse_message(data: bytes, *, channel: str, place: str, id: str) -> ReceivedMessage:
    """Return the message of a JSON object.

    The object has a `text`, and perhaps `id`, `place`, `thread`, `from`, `title`, `inReplyTo`,
    `at`, `group`, `mentions`, `hops`, and `known` (false: the sender is a stranger).

    Args:
        data: The object, encoded.
        channel: The channel of the message.
        place: The place of a message that has none.
        id: The id of a message that has none.

    Raises InvalidInput if it is no such object.
    """
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"this is not valid JSON: {error}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("text"), str):
        raise InvalidInput('a message is a JSON object with a text, such as {"text": "Hello."}')
    wrong_names = _wrong_fields(fields)
    if wrong_names:
        raise InvalidInput(f"{', '.join(wrong_names)}: not of the type that a message needs")
    return ReceivedMessage(
        id=fields.get("id") or id,
        channel=channel,
        place=fields.get("place") or place,
        thread=fields.get("thread", ""),
        sender=fields.get("from") or channel,
        text=fields["text"],
        at=fields.get("at") or timestamps.now(),
        title=fields.get("title", ""),
        is_group=fields.get("group") is True,
        mentions=frozenset(fields.get("mentions", [])),
        reply_to=fields.get("inReplyTo", ""),
        hops=fields.get("hops", 0),
        known=fields.get("known") is not False,
    )


def _wrong_fields(fields: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields whose values have a wrong type."""
    wrong_names = [name for name in _TEXT_FIELDS if not isinstance(fields.get(name, ""), str)]
    mentions = fields.get("mentions", [])
    is_list = isinstance(mentions, list)
    if not is_list or not all(isinstance(name, str) for name in mentions):
        wrong_names.append("mentions")
    hops = fields.get("hops", 0)
    if not isinstance(hops, int) or not 0 <= hops < _MAX_HOPS:
        wrong_names.append("hops")
    return wrong_names


def as_json(out: OutgoingMessage) -> dict[str, Any]:
    """Return an outgoing message as JSON, without empty fields."""
    files = [{"name": file.name, "data": b64encode(file.read()).decode()} for file in out.files]
    fields = {
        "id": out.id,
        "kind": out.kind,
        "place": out.place,
        "thread": out.thread,
        "from": out.agent,
        "text": out.text,
        "inReplyTo": out.reply_to,
        "target": out.target,
        "emoji": out.emoji,
        "options": [dict(option) for option in out.options],
        "files": files,
        "hops": out.hops,
    }
    return {name: value for name, value in fields.items() if value}


# -- Webhooks --------------------------------------------------------------------------------------

#: The local kind of document with the secret and the address of a webhook.
KIND = "webhooks"
#: The path of a webhook, before its name.
PATH = "/hooks/"
#: Seconds that the time of a request may differ from the time here. Later it cannot be repeated.
WINDOW_S = 300
#: Bytes of the body of a request. Senders are advised to stay below 20,000.
MAX_BODY_BYTES = 1 << 20
_KEY_PREFIX = "whsec_"
#: An id has no full stop, because the end of the id could pass for a timestamp then.
_ID = re.compile(r"[^\s.]{1,200}")
#: Connections at once.
_MAX_CONNECTIONS = 192
#: Connections at once that have sent no whole request, in total and from one address.
_MAX_STRANGERS = 128
_MAX_STRANGERS_OF_ADDRESS = 32


@dataclass(frozen=True, slots=True)
class Webhook:
    """A place that messages come from and go to by HTTP.

    Attributes:
        name: Its name, which is the last part of its path here.
        secret: The secret with which both sides sign.
        url: The address that messages are sent to. Empty: none are sent.
    """

    name: str
    secret: str
    url: str = ""


class Webhooks:
    """The webhooks of a store on this machine.

    Args:
        local_documents: The store's documents of this machine.
    """

    def __init__(self, local_documents: LocalDocuments) -> None:
        self._local_documents = local_documents

    def get(self, name: str) -> Webhook:
        """Return a webhook. Raises NotFound, InvalidInput. Cost: reading a small file."""
        document = self._local_documents.read(KIND, name)
        if not document or not document.get("secret"):
            raise NotFound(f"there is no webhook {name}", id=name)
        return Webhook(name, str(document["secret"]), str(document.get("url") or ""))

    def keep(self, name: str, url: str = "") -> Webhook:
        """Make a webhook with a new secret, or change the address of an existing one.

        Args:
            name: Its name.
            url: The address that messages are sent to. Empty: none are sent.

        Raises InvalidInput. Cost: writing a small file.
        """
        if url and not re.match(r"https?://[^/\s]", url):
            raise InvalidInput(f"{url!r} is neither an http nor an https address")
        try:
            secret = self.get(name).secret
        except NotFound:
            secret = _KEY_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()
        self._write(name, {"secret": secret, "url": url})
        return Webhook(name, secret, url)

    def remove(self, name: str) -> None:
        """Remove a webhook with its secret. Raises NotFound. Cost: writing a small file."""
        self._write(self.get(name).name, {})

    def _write(self, name: str, fields: dict[str, Any]) -> None:
        self._local_documents.edit(KIND, name, lambda _: fields)


def sign(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a request.

    Args:
        secret: The secret in base64, with or without `whsec_` before it.
        id: The request's id, the same at each try.
        timestamp: The time of sending, in seconds since 1970.
        body: Its body, byte for byte.

    Raises InvalidInput if the secret is not valid base64.
    """
    try:
        key = base64.b64decode(secret.removeprefix(_KEY_PREFIX), validate=True)
    except binascii.Error:
        raise InvalidInput("the secret of the webhook is not valid base64") from None
    mac = hmac.digest(key, f"{id}.{timestamp}.".encode() + body, "sha256")
    return f"v1,{base64.b64encode(mac).decode()}"


def verify(secret: str, headers: Mapping[str, str], body: bytes, now_s: float) -> str:
    """Check the signature of a request, and return its id.

    Args:
        secret: As in `sign`.
        headers: Its headers, by lowercase names.
        body: Its body.
        now_s: The time, in seconds since 1970.

    Raises Refused if the signature is missing or wrong, or the time of the request differs from
    `now_s` by more than five minutes.
    """
    id = headers.get("webhook-id", "")
    timestamp = headers.get("webhook-timestamp", "")
    if not _ID.fullmatch(id) or not re.fullmatch("[0-9]{1,12}", timestamp):
        raise Refused("webhook-id or webhook-timestamp is missing or malformed", path="")
    expected = sign(secret, id, int(timestamp), body).encode()
    # While a secret is being replaced, a request has a signature for each secret.
    signatures = headers.get("webhook-signature", "").encode("utf-8", "replace").split(b" ")
    if not any(hmac.compare_digest(expected, signature) for signature in signatures):
        raise Refused("no webhook-signature is valid", path="")
    if abs(now_s - int(timestamp)) > WINDOW_S:
        raise Refused(
            f"webhook-timestamp differs from the local time by more than {WINDOW_S} s", path=""
        )
    return id


class WebhookAdapter(Adapter):
    """The adapter of the channel `webhook`. A place is the name of a webhook.

    Args:
        engine: The engine of the store.
        listen: Opens the socket for requests. It is called when the adapter starts, so that a host
            that waits for another one takes no port. None: no requests are served.
    """

    name = "webhook"

    def __init__(self, engine: Engine, listen: Callable[[], socket.socket] | None = None) -> None:
        self._webhooks = Webhooks(engine.local)
        self._listen = listen
        self._server: Any = None
        self._thread: threading.Thread | None = None

    def start(self, receiver: Receiver) -> None:
        """Serve requests in a thread of its own, if `listen` was given. Raises its errors."""
        if self._listen is None:
            return
        import uvicorn
        from starlette.applications import Starlette
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import JSONResponse
        from starlette.routing import Route

        from capsule.connections import Connections, read_body

        connections = Connections(_MAX_CONNECTIONS, _MAX_STRANGERS, _MAX_STRANGERS_OF_ADDRESS)

        async def serve_request(request: Request) -> Response:
            # Unread bytes must not be taken for another request. And a second request on the
            # connection would count as a trusted client's.
            headers = {"connection": "close"}
            try:
                body = await read_body(request, MAX_BODY_BYTES)
            except ValueError:
                return JSONResponse({"error": "too large"}, 413, headers)
            except TimeoutError:
                return JSONResponse({"error": "too slow"}, 408, headers)
            connections.trust(request.client)
            status, answer = await run_in_threadpool(self._answer, receiver, request, body)
            return JSONResponse(answer, status, headers)

        app = Starlette(routes=[Route(PATH + "{name}", serve_request, methods=["POST"])])
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                lifespan="off",
                timeout_graceful_shutdown=1,
                **connections.options(),
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, args=([self._listen()],), name="webhook", daemon=True
        )
        self._thread.start()

    def _answer(
        self, receiver: Receiver, request: Request, body: bytes
    ) -> tuple[int, dict[str, Any]]:
        """Take the message of a request. Return the status of the response and its JSON."""
        try:
            webhook = self._webhooks.get(request.path_params["name"])
            id = verify(webhook.secret, request.headers, body, time.time())
        except Refused as error:
            return 401, {"error": error.message}
        except (NotFound, InvalidInput):
            # A client that cannot sign does not learn which names exist.
            return 401, {"error": "no webhook-signature is valid"}
        try:
            received = _parse_body(webhook.name, id, body)
            receiver.receive([received])
        except InvalidInput as error:
            return 409 if "id" in error.fields else 422, {"error": error.message}
        except CapsuleError as error:
            return 503, {"error": error.message}
        return 200, {"id": received.id}

    def deliver(self, out: OutgoingMessage) -> str:
        """Send a message to the address of its webhook, and return the id of the message.

        Raises:
            OSError: It was not accepted. Another try may succeed.
            NotFound, Refused: The webhook or its address does not exist.
        """
        webhook = self._webhooks.get(out.place)
        if not webhook.url:
            raise Refused(
                f"the webhook {webhook.name} has no address to send to", path=webhook.name
            )
        body = orjson.dumps({"type": "message", "timestamp": timestamps.now(), **as_json(out)})
        now_s = int(time.time())
        signature = sign(webhook.secret, out.id, now_s, body)
        headers = {
            "webhook-id": out.id,
            "webhook-timestamp": str(now_s),
            "webhook-signature": signature,
        }
        doorbells.post_json(webhook.url, body, headers)
        return out.id

    def stop(self) -> None:
        """Accept no more requests, and answer those that were accepted. Raises nothing.

        Cost: at most some seconds.
        """
        if self._thread is not None:
            self._server.should_exit = True
            self._thread.join()


def _parse_body(name: str, id: str, body: bytes) -> ReceivedMessage:
    """Return the message of a request: its JSON object if that has a `text`, or else its whole body
    as the text.

    Args:
        name: The name of the webhook, which is the place of the message.
        id: The id of the request. Two webhooks may get the same one.
        body: The body.
    """
    message_id = keyed_message_id(f"webhook:{name}", id)
    try:
        received = parse_message(body, channel="webhook", place=name, id=message_id)
    except InvalidInput:
        text_object = orjson.dumps({"text": body.decode("utf-8", "replace")})
        received = parse_message(text_object, channel="webhook", place=name, id=message_id)
    return replace(received, id=message_id, place=name, kind="webhook")
