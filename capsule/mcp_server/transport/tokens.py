"""The tokens of a store over HTTP: one for each holder, stored as hashes only.

What must stay true: a token leaves this module once, when it is made, and can't be computed from
what is stored; the file lies in the user's configuration and in no store, so that it is never
committed or copied with one; and it is read for each request, so that a revoked token is refused
from the next request on.

A token is 256 random bits, so a plain SHA-256 of it is enough: slow hashes are for passwords, which
can be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from capsule import timestamps
from capsule.disk import kernel_locks
from capsule.disk.whole_files import replace_file, translate_errors
from capsule.errors import InvalidDocument, InvalidInput, NotFound, Problem, Refused
from capsule.ids import is_id
from capsule.mcp_server.access import SCOPES, Scope

#: Scanners for secrets recognise a leaked token by it.
_PREFIX = "capsule_"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it is kept: its holder's name, `sha256:` and its hash in hex, and the widest scope
    that it gives.
    """

    name: str
    hash: str
    created_at: str
    scope: Scope
    expires_at: str | None

    @property
    def expires_s(self) -> int | None:
        """When it expires, in seconds since 1970; None: never."""
        return (
            None
            if self.expires_at is None
            else int(datetime.fromisoformat(self.expires_at).timestamp())
        )

    def is_over(self, now_s: float) -> bool:
        """Whether it has expired."""
        return self.expires_s is not None and self.expires_s < now_s


class Tokens:
    """The tokens of the store at `root`, kept in the directory of the user's configuration of
    Capsule.
    """

    def __init__(self, config: Path, root: str) -> None:
        self.root = root if "://" in root else os.path.realpath(root)
        self.path = (
            config / "tokens" / f"{hashlib.sha256(os.fsencode(self.root)).hexdigest()[:32]}.json"
        )

    def all(self) -> list[Token]:
        """The tokens, the oldest first.

        Raises:
            Refused: The file is open to others than its owner, or may not be read.
            InvalidDocument: It is none of ours.
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
        return _parsed(data, str(self.path))

    def add(self, name: str, *, scope: Scope = "write", expires_in_s: float | None = None) -> str:
        """Make a token for a holder, who may have had one that expired. The token can't be had
        again.

        Args:
            name: The agent that what the holder writes is from; its locks show it.
            expires_in_s: None: it does not expire.

        Raises:
            InvalidInput: The name can't be accepted, or has a token already.
        """
        if not is_id(name):
            raise InvalidInput(
                f"{name[:60]!r} is not a name of a holder: it starts with a letter or digit, "
                "continues with letters, digits and . _ @ -, and has at most 128 bytes"
            )
        token = _PREFIX + secrets.token_urlsafe(32)
        now = datetime.now(UTC)
        expires_at = (
            None
            if expires_in_s is None
            else timestamps.from_ms(int((now.timestamp() + expires_in_s) * 1000))
        )

        with self._changed() as tokens:
            tokens[:] = [
                known
                for known in tokens
                if known.name != name or not known.is_over(now.timestamp())
            ]
            if any(known.name == name for known in tokens):
                raise InvalidInput(
                    f"{name} already has a token; choose another name, or revoke that token "
                    f"first: capsule mcp tokens revoke {name}"
                )
            tokens.append(Token(name, _hash(token), timestamps.now(), scope, expires_at))
        return token

    def revoke(self, name: str) -> Token:
        """Take a holder's token away. Raises NotFound: there is none."""
        with self._changed() as tokens:
            token = next((known for known in tokens if known.name == name), None)
            if token is None:
                raise NotFound(
                    f"{name[:130]!r} has no token; list the tokens with: capsule mcp tokens list",
                    id=name,
                )
            tokens.remove(token)
        return token

    def holder_of(self, token: str) -> Token | None:
        """The stored record of a token; None: it is unknown, revoked or expired. Costs reading a
        small file.

        Every hash is compared, each in constant time, so that the time says nothing about what is
        stored.
        """
        hash = _hash(token)
        equal = [known for known in self.all() if hmac.compare_digest(known.hash, hash)]
        return equal[0] if equal and not equal[0].is_over(time.time()) else None

    @contextmanager
    def _changed(self) -> Iterator[list[Token]]:
        """The tokens, for the body to change; they are written when it ends, and no other process
        writes meanwhile.
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
                    "tokens": list(map(_written, tokens)),
                }
                data = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
                replace_file(path, self.path.read_bytes() if self.path.exists() else None, data)


def _hash(token: str) -> str:
    return "sha256:" + hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _written(token: Token) -> dict[str, Any]:
    value = {
        "name": token.name,
        "hash": token.hash,
        "createdAt": token.created_at,
        "scope": token.scope,
    }
    return value if token.expires_at is None else {**value, "expiresAt": token.expires_at}


def _token(value: dict[str, Any]) -> Token:
    scope = value["scope"]
    expires_at = value.get("expiresAt")
    if scope not in SCOPES:
        raise ValueError(f"{scope!r} is not a scope")
    if expires_at is not None:
        datetime.fromisoformat(expires_at)
    return Token(str(value["name"]), str(value["hash"]), str(value["createdAt"]), scope, expires_at)


def _parsed(data: bytes, path: str) -> list[Token]:
    try:
        value = orjson.loads(data)
        if value["version"] != _VERSION:
            raise ValueError(
                f"its version is {value['version']!r}, and this Capsule knows {_VERSION}"
            )
        return [_token(token) for token in value["tokens"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidDocument.of(
            [Problem(path, 0, 0, "", f"is not a file of tokens: {error}")]
        ) from error
