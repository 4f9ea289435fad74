"""Parse the address of a store in PostgreSQL: a URL of libpq with the further option `schema`.

What must stay true: a password in it is given to libpq alone. Every text for output, logs, files or
child processes is without it.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from capsule.errors import InvalidInput

SCHEMA = "capsule"
_BEGIN = "postgresql://"
_SCHEME = re.compile(r"\s*postgres(?:ql)?(?:\+\w+)?://", re.IGNORECASE)
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,49}", re.ASCII)


class Address:
    """An address. Its text has no password.

    Args:
        url: The URL. Its scheme may name a driver, as `postgresql+psycopg`. Raises InvalidInput: it
            is no address, or the name of the schema is invalid.

    Attributes:
        schema: The schema in which the store is.
        shown: The URL without a password.
        place: The URL without user and password. It identifies the store.
    """

    def __init__(self, url: str) -> None:
        scheme = _SCHEME.match(url)
        if scheme is None:
            raise InvalidInput(
                "that is not an address of a database: one begins with postgresql://"
            )
        try:
            parts = urlsplit(f"{_BEGIN}{url[scheme.end() :].rstrip()}")
            # A plus is a plus for libpq.
            plain = parts.query.replace("+", "%2B")
            query = parse_qsl(plain, keep_blank_values=True, strict_parsing=bool(plain))
        except ValueError as error:
            raise InvalidInput(f"that is not an address of a database: {_why(error)}") from None
        # Where a password is not encoded, parts of it would be taken for other parts of the
        # address, and shown.
        ports = [
            host.rpartition("]")[2].partition(":")[2]
            for host in parts.netloc.rpartition("@")[2].split(",")
        ]
        is_broken = parts.fragment or "@" in parts.path + parts.query or parts.netloc.count("@") > 1
        if is_broken or not all(map(str.isdecimal, filter(None, ports))):
            raise InvalidInput(
                "that is not an address of a database: in names and passwords, write @ : / ? # % as "
                "%40 %3A and so on"
            )
        fields = dict(query)
        self.schema = fields.get("schema", SCHEMA)
        if _NAME.fullmatch(self.schema) is None:
            raise InvalidInput(
                f"schema={self.schema!r}: a name has up to 50 small letters, digits and _, and does "
                "not begin with a digit"
            )
        user, _, hosts = parts.netloc.rpartition("@")
        secret = {"password", "passfile", "sslpassword"}
        open_to_all = [(key, value) for key, value in query if key.lower() not in secret]
        name = f"{user.partition(':')[0]}@" if user else ""
        self.shown = _url(f"{name}{hosts}", parts.path, open_to_all)
        where = sorted(
            (key, value)
            for key, value in query
            if key in ("host", "hostaddr", "port", "dbname", "schema")
        )
        self.place = _url(hosts, parts.path, where)
        #: What libpq gets.
        self.conninfo = _url(
            parts.netloc, parts.path, [each for each in query if each[0] != "schema"]
        )
        password = user.partition(":")[2]
        self._passwords = [
            password,
            unquote(password),
            *(value for key, value in query if key.lower() in secret),
        ]

    def __repr__(self) -> str:
        return self.shown

    __str__ = __repr__

    def without_password(self, text: str) -> str:
        """A text of libpq, in which no password is."""
        for password in filter(None, self._passwords):
            text = text.replace(password, "***")
        return text


def _url(netloc: str, path: str, query: list[tuple[str, str]]) -> str:
    """Return an address. `urlunsplit` would drop the slashes of one without a host,
    as of a socket.
    """
    fields = urlencode(
        query, safe="/,:", quote_via=quote
    )  # libpq takes %20 for a space, and no plus.
    return f"{_BEGIN}{netloc}{path}{'?' if fields else ''}{fields}"


def _why(error: Exception) -> str:
    return "its parameters can't be read" if "query" in str(error) else "it can't be read"
