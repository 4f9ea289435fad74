"""What a client may do, and for which agent: its scope, and its token over HTTP.

The scope `read` changes nothing. `write` adds and changes. `admin` also removes the messages and
locks of others. A token is 256 random bits, so a plain SHA-256 is enough. Slow hashes are for
passwords, which can be guessed.

What must stay true:
- The identity and the scope come from the start of the server or from the token, never from an
  argument of a call. Every tool has a scope.
- A token leaves this module once, when it is made, and can't be computed from the file. The file is
  in the user's configuration and not in the store, so that it is never committed or copied with the
  store. It is read for each request, so that a revoked token is refused from the next request on.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import orjson

from capsule import timestamps
from capsule.disk import kernel_locks
from capsule.disk.whole_files import replace_file, translate_errors
from capsule.errors import InvalidDocument, InvalidInput, NotFound, Problem, Refused
from capsule.ids import is_id

if TYPE_CHECKING:
    from mcp.server.mcpserver.tools import Tool


# -- Scopes ----------------------------------------------------------------------------------------

#: Which tools a server offers.
Toolset = Literal["conversations", "messaging", "all", "session"]
Scope = Literal["read", "write", "admin"]
#: The scopes, from the narrowest to the widest. Each includes those before it.
SCOPES: tuple[Scope, ...] = get_args(Scope)
#: The tools that need `admin`. Unlocking by force needs it too.
_ADMIN_TOOLS = frozenset({"delete_conversation", "delete_messages"})
#: The actions of any tool that change nothing.
_READ_ACTIONS = ("list", "show", "search")


@dataclass(frozen=True, slots=True)
class Access:
    """What a client may do, and for which agent. Without a name, an argument of a call may name the
    agent.
    """

    name: str | None = None
    scope: Scope = "admin"

    def includes(self, scope: Scope) -> bool:
        """Return whether the client has a scope."""
        return SCOPES.index(scope) <= SCOPES.index(self.scope)


def required_scope(tool: Tool, arguments: Mapping[str, Any] | None = None) -> Scope:
    """Return the scope that a call needs. Without arguments, return the narrowest scope with which
    any call of the tool is permitted.
    """
    if tool.annotations is not None and tool.annotations.read_only_hint:
        return "read"
    actions = tool.parameters["properties"].get("action", {}).get("enum", ())
    if any(
        action in _READ_ACTIONS and (arguments is None or arguments.get("action") == action)
        for action in actions
    ):
        return "read"
    forced = tool.name == "unlock_conversation" and bool((arguments or {}).get("force"))
    return "admin" if tool.name in _ADMIN_TOOLS or forced else "write"


# -- Tokens ----------------------------------------------------------------------------------------

#: The beginning of a token, by which scanners for secrets recognise it.
_PREFIX = "capsule_"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Token:
    """The stored record of a token.

    Attributes:
        name: The name of its holder.
        hash: `sha256:` and its hash in hex.
        created_at: The time at which it was made.
        scope: The widest scope that it permits.
        expires_at: The time at which it expires. None: never.
    """

    name: str
    hash: str
    created_at: str
    scope: Scope
    expires_at: str | None

    @property
    def expires_s(self) -> int | None:
        """Return the time at which it expires, in seconds since 1970. None: never."""
        if self.expires_at is None:
            return None
        return int(datetime.fromisoformat(self.expires_at).timestamp())

    def has_expired(self, now_s: float) -> bool:
        """Return whether it has expired at a time, in seconds since 1970."""
        return self.expires_s is not None and self.expires_s < now_s


class Tokens:
    """The tokens of one store.

    Args:
        config: The folder of the user's configuration of Capsule.
        root: The directory or address of the store.
    """

    def __init__(self, config: Path, root: str) -> None:
        self.root = root if "://" in root else os.path.realpath(root)
        self.path = (
            config / "tokens" / f"{hashlib.sha256(os.fsencode(self.root)).hexdigest()[:32]}.json"
        )

    def all(self) -> list[Token]:
        """Return the records of the tokens, the oldest first.

        Raises:
            Refused: Others than the owner may write the file, or it can't be read.
            InvalidDocument: It is not a file of tokens.
        """
        with translate_errors(str(self.path), "read"):
            try:
                fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                return []
            with os.fdopen(fd, "rb") as file:
                mode, data = stat.S_IMODE(os.fstat(fd).st_mode), file.read()
        if mode & 0o022 and os.name == "posix":
            raise Refused(
                f"{self.path}: others than its owner may write it (mode {mode:04o}), so the "
                f"tokens cannot be trusted; look at it, then run: chmod 600 {self.path}",
                path=str(self.path),
            )
        return _parse_tokens(data, str(self.path))

    def add(self, name: str, *, scope: Scope = "write", expires_in_s: float | None = None) -> str:
        """Make a token for a holder, and return it. It can't be read again. An expired token of the
        holder is replaced.

        Args:
            name: The holder: the agent that its messages are from.
            scope: The widest scope that the token permits.
            expires_in_s: Seconds until it expires. None: never.

        Raises:
            InvalidInput: The name is invalid, or has a token already.
        """
        if not is_id(name):
            raise InvalidInput(
                f"{name[:60]!r} is not a name of a holder: it starts with a letter or digit, "
                "continues with letters, digits and . _ @ -, and has at most 128 bytes"
            )
        token = _PREFIX + secrets.token_urlsafe(32)
        now = datetime.now(UTC)
        expires_at = None
        if expires_in_s is not None:
            expires_at = timestamps.from_ms(int((now.timestamp() + expires_in_s) * 1000))

        with self._locked_tokens() as tokens:
            tokens[:] = [
                stored
                for stored in tokens
                if stored.name != name or not stored.has_expired(now.timestamp())
            ]
            if any(stored.name == name for stored in tokens):
                raise InvalidInput(
                    f"{name} already has a token; choose another name, or revoke that token "
                    f"first: capsule mcp tokens revoke {name}"
                )
            tokens.append(Token(name, _hash(token), timestamps.now(), scope, expires_at))
        return token

    def revoke(self, name: str) -> Token:
        """Remove a holder's token, and return its record. Raises NotFound: the holder has none."""
        with self._locked_tokens() as tokens:
            token = next((stored for stored in tokens if stored.name == name), None)
            if token is None:
                raise NotFound(
                    f"{name[:130]!r} has no token; list the tokens with: capsule mcp tokens list",
                    id=name,
                )
            tokens.remove(token)
        return token

    def holder_of(self, token: str) -> Token | None:
        """Return the record of a token. None: it is unknown, revoked or expired. Cost: reads a
        small file.

        All hashes are compared, each in constant time, so that the time reveals nothing about them.
        """
        hash = _hash(token)
        equal = [stored for stored in self.all() if hmac.compare_digest(stored.hash, hash)]
        return equal[0] if equal and not equal[0].has_expired(time.time()) else None

    @contextmanager
    def _locked_tokens(self) -> Iterator[list[Token]]:
        """Yield the tokens to change. They are written after the body. No other process writes in
        the meantime.
        """
        path = str(self.path)
        with translate_errors(path, "write"):
            self.path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
            fd = os.open(
                f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            with os.fdopen(fd, "rb") as lock:
                kernel_locks.lock(lock.fileno(), wait=True)
                tokens = self.all()
                yield tokens
                value = {
                    "version": _VERSION,
                    "store": self.root,
                    "tokens": list(map(_record_of, tokens)),
                }
                data = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
                replace_file(path, self.path.read_bytes() if self.path.exists() else None, data)


def _hash(token: str) -> str:
    return "sha256:" + hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _record_of(token: Token) -> dict[str, Any]:
    value = {
        "name": token.name,
        "hash": token.hash,
        "createdAt": token.created_at,
        "scope": token.scope,
    }
    return value if token.expires_at is None else {**value, "expiresAt": token.expires_at}


def _parse_token(value: dict[str, Any]) -> Token:
    scope = value["scope"]
    expires_at = value.get("expiresAt")
    if scope not in SCOPES:
        raise ValueError(f"{scope!r} is not a scope")
    if expires_at is not None:
        datetime.fromisoformat(expires_at)
    return Token(str(value["name"]), str(value["hash"]), str(value["createdAt"]), scope, expires_at)


def _parse_tokens(data: bytes, path: str) -> list[Token]:
    try:
        value = orjson.loads(data)
        if value["version"] != _VERSION:
            raise ValueError(
                f"its version is {value['version']!r}, and this Capsule knows {_VERSION}"
            )
        return [_parse_token(token) for token in value["tokens"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidDocument.of(
            [Problem(path, 0, 0, "", f"is not a file of tokens: {error}")]
        ) from error
