"""Messages by HTTP, in and out, signed as the Standard Webhooks specification 1.0.0 says
(standardwebhooks.com): HMAC-SHA256 over `id.timestamp.body`.

What must stay true: nothing of a request is believed before its signature is found right, in a
comparison that takes equally long for every wrong one; a request is acknowledged when its message
is durable; one that comes again, which has the same id, changes nothing, and is an error if it says
something else. Secrets and addresses are documents of a local kind, which no clone brings. The
module knows neither sessions nor when a delivery is tried again.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from capsule import timestamps
from capsule.errors import CapsuleError, InvalidInput, NotFound, Refused
from capsule.ids import keyed_message_id
from capsule.messaging import doorbells
from capsule.sessions.adapters.interface import Adapter, OutgoingMessage, ReceivedMessage, Receiver
from capsule.sessions.adapters.stdio import arrived_from, as_json

if TYPE_CHECKING:
    import socket

    from starlette.requests import Request
    from starlette.responses import Response

    from capsule.engines.interface import Engine
    from capsule.engines.local_documents import LocalDocuments

KIND = "webhooks"
PATH = "/hooks/"
#: Seconds that the clocks of the two sides may differ, and for which a request can be repeated at
#: all.
WINDOW_S = 300
#: Bytes of a request; those who send are advised to stay below 20,000.
MOST_BYTES = 1 << 20
_PREFIX = "whsec_"
#: A full stop in it would let the end of an id pass for a timestamp.
_ID = re.compile(r"[^\s.]{1,200}")
#: Connections at once, those that have not sent a whole request, and of these those of one address.
_CONNECTIONS = (192, 128, 32)


@dataclass(frozen=True, slots=True)
class Webhook:
    """A place from which messages come by HTTP, and to which they go.

    Attributes:
        name: Its name, which is the last part of its path here.
        secret: What both sides sign with.
        url: Where messages are sent to; empty: none are.
    """

    name: str
    secret: str
    url: str = ""


class Webhooks:
    """The webhooks of a store on this machine.

    Args:
        machine: Keeps them.
    """

    def __init__(self, machine: LocalDocuments) -> None:
        self._machine = machine

    def get(self, name: str) -> Webhook:
        """A webhook. Raises NotFound, InvalidInput. Cost: reading a small file."""
        document = self._machine.read(KIND, name)
        if not document or not document.get("secret"):
            raise NotFound(f"there is no webhook {name}", id=name)
        return Webhook(name, str(document["secret"]), str(document.get("url") or ""))

    def keep(self, name: str, url: str = "") -> Webhook:
        """Make a webhook with a new secret, or change where messages are sent to.

        Raises InvalidInput. Cost: writing a small file.
        """
        if url and not re.match(r"https?://[^/\s]", url):
            raise InvalidInput(f"{url!r} is neither an http nor an https address")
        try:
            secret = self.get(name).secret
        except NotFound:
            secret = _PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()
        self._write(name, {"secret": secret, "url": url})
        return Webhook(name, secret, url)

    def remove(self, name: str) -> None:
        """Remove a webhook; nothing of its secret is left. Raises NotFound. Cost: writing a small
        file.
        """
        self._write(self.get(name).name, {})

    def _write(self, name: str, fields: dict[str, Any]) -> None:
        self._machine.edit(KIND, name, lambda _: fields)


def sign(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """The signature of a request. Raises InvalidInput: the secret is none.

    Args:
        secret: In base64, with or without `whsec_` before it.
        id: The request's id, the same at each try.
        timestamp: When it is sent, in seconds since 1970.
        body: Its body, byte for byte.
    """
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        raise InvalidInput("the secret of the webhook is not valid base64") from None
    mac = hmac.digest(key, f"{id}.{timestamp}.".encode() + body, "sha256")
    return f"v1,{base64.b64encode(mac).decode()}"


def verified(secret: str, headers: Mapping[str, str], body: bytes, now_s: float) -> str:
    """The id of a request whose signature is right.

    Args:
        secret: As in `sign`.
        headers: Its headers, by names in small letters.
        body: Its body.
        now_s: The time, in seconds since 1970.

    Raises Refused: the signature is missing or wrong, or the request is older or younger than five
    minutes.
    """
    id, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not _ID.fullmatch(id) or not re.fullmatch("[0-9]{1,12}", at):
        raise Refused("webhook-id or webhook-timestamp is missing or malformed", path="")
    right = sign(secret, id, int(at), body).encode()
    # Several signatures are there while a secret is being replaced.
    given = headers.get("webhook-signature", "").encode("utf-8", "replace").split(b" ")
    if not any(hmac.compare_digest(right, signature) for signature in given):
        raise Refused("no webhook-signature is valid", path="")
    if abs(now_s - int(at)) > WINDOW_S:
        raise Refused(
            f"webhook-timestamp differs from the local time by more than {WINDOW_S} s", path=""
        )
    return id


class WebhookAdapter(Adapter):
    """See the module. The channel: `webhook`; a place: the name of a webhook.

    Args:
        engine: The engine that keeps the webhooks.
        listen: Gives the socket at which requests are taken; None: messages only go out. It is
            called when the adapter begins, so that a host that waits for another one takes no port.
    """

    name = "webhook"

    def __init__(self, engine: Engine, listen: Callable[[], socket.socket] | None = None) -> None:
        self._hooks = Webhooks(engine.local)
        self._listen = listen
        self._server: Any = None
        self._thread: threading.Thread | None = None

    def start(self, receiver: Receiver) -> None:
        """Take requests in a thread of its own, if there is a socket. Raises the errors of
        `listen`.
        """
        if self._listen is None:
            return
        import uvicorn
        from starlette.applications import Starlette
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import JSONResponse
        from starlette.routing import Route

        from capsule.connections import Connections, read_body

        connections = Connections(*_CONNECTIONS)

        async def take(request: Request) -> Response:
            ends = {
                "connection": "close"
            }  # Also, unread bytes must not be taken for another request.
            try:
                body = await read_body(request, MOST_BYTES)
            except ValueError:
                return JSONResponse({"error": "too large"}, 413, ends)
            except TimeoutError:
                return JSONResponse({"error": "too slow"}, 408, ends)
            connections.trust(request.client)
            code, answer = await run_in_threadpool(self._take, receiver, request, body)
            return JSONResponse(
                answer, code, ends
            )  # A second request would count as one of somebody who is trusted.

        app = Starlette(routes=[Route(PATH + "{name}", take, methods=["POST"])])
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

    def _take(
        self, receiver: Receiver, request: Request, body: bytes
    ) -> tuple[int, dict[str, Any]]:
        """The answer to a request: its status, and the id of its message or an error."""
        try:
            hook = self._hooks.get(request.path_params["name"])
            id = verified(hook.secret, request.headers, body, time.time())
        except (NotFound, Refused, InvalidInput) as error:
            # Who can't sign does not learn which names there are.
            return 401, {
                "error": error.message
                if isinstance(error, Refused)
                else "no webhook-signature is valid"
            }
        try:
            arrived = _arrived(hook.name, id, body)
            receiver.receive([arrived])
        except InvalidInput as error:
            return 409 if "id" in error.fields else 422, {"error": error.message}
        except CapsuleError as error:
            return 503, {"error": error.message}
        return 200, {"id": arrived.id}

    def deliver(self, out: OutgoingMessage) -> str:
        """Send a message to the address of its webhook; its id.

        Raises OSError: it was not taken, and may be tried again. NotFound, Refused: there is no
        such address.
        """
        hook = self._hooks.get(out.place)
        if not hook.url:
            raise Refused(f"the webhook {hook.name} has no address to send to", path=hook.name)
        body = orjson.dumps({"type": "message", "timestamp": timestamps.now(), **as_json(out)})
        now_s = int(time.time())
        signature = sign(hook.secret, out.id, now_s, body)
        headers = {
            "webhook-id": out.id,
            "webhook-timestamp": str(now_s),
            "webhook-signature": signature,
        }
        doorbells.post_json(hook.url, body, headers)
        return out.id

    def stop(self) -> None:
        """Take no more requests, and answer those that are there. Raises nothing. Cost: at most
        some seconds.
        """
        if self._thread is not None:
            self._server.should_exit = True
            self._thread.join()


def _arrived(name: str, id: str, body: bytes) -> ReceivedMessage:
    """The message of a request: its JSON object, if it has a `text`, else its whole body as the
    text.
    """
    own = keyed_message_id(f"webhook:{name}", id)  # Two senders may use one id.
    try:
        arrived = arrived_from(body, channel="webhook", place=name, id=own)
    except InvalidInput:
        whole = orjson.dumps({"text": body.decode("utf-8", "replace")})
        arrived = arrived_from(whole, channel="webhook", place=name, id=own)
    return replace(arrived, id=own, place=name, kind="webhook")
