"""The address of a store in PostgreSQL: a URL in libpq's syntax, with one more parameter, `schema`.

What must stay true: only libpq gets a password of the address. What is printed, logged, stored or
passed to a child process has none.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from capsule.errors import InvalidInput

SCHEMA = "capsule"
_PREFIX = "postgresql://"
_SCHEME = re.compile(r"\s*postgres(?:ql)?(?:\+\w+)?://", re.IGNORECASE)
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,49}", re.ASCII)
#: Parameters that hold a password, or name a file with one.
_SECRET_KEYS = {"password", "passfile", "sslpassword"}
#: Parameters that decide which store the address means.
_PLACE_KEYS = ("host", "hostaddr", "port", "dbname", "schema")


class Address:
    """The parsed address of a store. `str` gives it without a password.

    Args:
        url: The URL. Its scheme may name a driver, as in `postgresql+psycopg`. Raises InvalidInput
            if it is no URL of PostgreSQL, or its schema is not a valid name.

    Attributes:
        schema: The schema of the store in the database.
        shown: The URL without a password.
        place: The URL without a password and a user. Two addresses of one store have the same.
        conninfo: The URL for libpq, with the password and without `schema`.
    """

    def __init__(self, url: str) -> None:
        scheme = _SCHEME.match(url)
        if scheme is None:
            raise InvalidInput(
                "that is not an address of a database: one begins with postgresql://"
            )
        try:
            parts = urlsplit(f"{_PREFIX}{url[scheme.end() :].rstrip()}")
            # libpq reads a plus as a plus, and not as a space.
            encoded_query = parts.query.replace("+", "%2B")
            query = parse_qsl(
                encoded_query, keep_blank_values=True, strict_parsing=bool(encoded_query)
            )
        except ValueError as error:
            raise InvalidInput(f"that is not an address of a database: {_reason(error)}") from None
        _check_encoding(parts.netloc, parts.path, parts.query, parts.fragment)
        self.schema = dict(query).get("schema", SCHEMA)
        if _SCHEMA_NAME.fullmatch(self.schema) is None:
            raise InvalidInput(
                f"schema={self.schema!r}: a name has up to 50 small letters, digits and _, and does "
                "not begin with a digit"
            )
        login, _, hosts = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        user_prefix = f"{user}@" if login else ""
        public_query = [(key, value) for key, value in query if key.lower() not in _SECRET_KEYS]
        self.shown = _url(f"{user_prefix}{hosts}", parts.path, public_query)
        place_query = sorted((key, value) for key, value in query if key in _PLACE_KEYS)
        self.place = _url(hosts, parts.path, place_query)
        libpq_query = [(key, value) for key, value in query if key != "schema"]
        self.conninfo = _url(parts.netloc, parts.path, libpq_query)
        query_passwords = [value for key, value in query if key.lower() in _SECRET_KEYS]
        self._passwords = [password, unquote(password), *query_passwords]

    def __repr__(self) -> str:
        return self.shown

    __str__ = __repr__

    def without_password(self, text: str) -> str:
        """Return a text of libpq with each password of this address replaced by `***`."""
        for password in filter(None, self._passwords):
            text = text.replace(password, "***")
        return text


def _check_encoding(netloc: str, path: str, query: str, fragment: str) -> None:
    """Raise InvalidInput if a name or a password has reserved characters that are not encoded.

    Parts of such a password would be taken for other parts of the address, and printed.
    """
    has_reserved = fragment or "@" in path + query or netloc.count("@") > 1
    hosts = netloc.rpartition("@")[2].split(",")
    ports = [host.rpartition("]")[2].partition(":")[2] for host in hosts]
    if has_reserved or not all(map(str.isdecimal, filter(None, ports))):
        raise InvalidInput(
            "that is not an address of a database: in names and passwords, write @ : / ? # % as "
            "%40 %3A and so on"
        )


def _url(netloc: str, path: str, query: list[tuple[str, str]]) -> str:
    """Return a URL. `urlunsplit` would drop the slashes of one without a host, as of a socket."""
    # libpq reads %20 as a space, but not a plus.
    fields = urlencode(query, safe="/,:", quote_via=quote)
    if not fields:
        return f"{_PREFIX}{netloc}{path}"
    return f"{_PREFIX}{netloc}{path}?{fields}"


def _reason(error: Exception) -> str:
    if "query" in str(error):
        return "its parameters can't be read"
    return "it can't be read"
