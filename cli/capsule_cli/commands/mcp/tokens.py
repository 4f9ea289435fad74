"""`mcp tokens`: list, add and revoke the tokens of clients over HTTP.

What must stay true: a whole token is printed once, when it is made. It can't be computed from what
is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from capsule.mcp_server.access import Scope
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.options import argument, option, parse_duration
from capsule_cli.shared.output import print_answer, print_list, print_notice
from capsule_cli.shared.stores import ensure_person

if TYPE_CHECKING:
    from capsule.mcp_server.access import Tokens


Name = Annotated[str, argument("NAME", "The agent that the token is for.", ...)]


def tokens_of(root: str) -> Tokens:
    """Return the tokens of the store at `root`. Their file is in the folder of the user's
    configuration, and not in the store.
    """
    import platformdirs

    from capsule.mcp_server.access import Tokens

    return Tokens(platformdirs.user_config_path("capsule", appauthor=False), root)


def _tokens() -> Tokens:
    from capsule import locate

    ensure_person("tokens")  # Who may make tokens can act as any agent.
    return tokens_of(locate.find_store(global_options.store))


def add(
    name: Name,
    allow: Scope = option(
        "--allow",
        "Allow to read (read), also to write (write), also to delete and to take locks from "
        "others (admin).",
        "write",
    ),
    expires: str | None = option(
        "--expires DURATION", "Make it expire after this time, for example 30d."
    ),
) -> None:
    """Make a token for an agent and print it. It is printed only once, because Capsule keeps only
    its hash.
    """
    expires_in_s = None if expires is None else parse_duration(expires, "--expires")
    token = _tokens().add(name, scope=allow, expires_in_s=expires_in_s)
    print_answer({"name": name, "token": token, "scope": allow}, token)
    if not global_options.json:
        print_notice(
            f"it is shown only this once; clients send it as: Authorization: Bearer {token[:12]}..."
        )


def list_() -> None:
    """List the agents that have a token, with the scopes of their tokens."""
    names = ("name", "scope", "createdAt", "expiresAt")
    columns = ("name", "scope", "created", "expires")
    rows = [
        (token.name, token.scope, token.created_at, token.expires_at) for token in _tokens().all()
    ]
    value = [dict(zip(names, row, strict=True)) for row in rows]
    texts = [tuple(text or "" for text in row) for row in rows]
    print_list(
        value,
        columns,
        texts,
        "there is no token; make one with: capsule mcp tokens add NAME",
        last="name",
    )


def revoke(name: Name) -> None:
    """Revoke an agent's token. A running server refuses it from the next request on."""
    token = _tokens().revoke(name)
    print_answer({"name": token.name, "revoked": True}, f"{token.name}: its token is revoked")
