"""Import and export as a room: two objects of the store, two commands and a resource.

Every function imports what it names, so that listing a room loads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from capsule.rooms import Command, Room

if TYPE_CHECKING:
    from capsule.mcp_server.server import CapsuleServer
    from capsule.store.store import CoreStore
    from capsule.transfer.exporting import Export
    from capsule.transfer.importing import Import


def _import() -> type[Import]:
    from capsule.transfer.importing import Import

    return Import


def _export() -> type[Export]:
    from capsule.transfer.exporting import Export

    return Export


def _forget_purged(store: CoreStore) -> None:
    store.inner.object_of(_import()).forget()


def _register_resources(server: CapsuleServer) -> None:
    from capsule.transfer import resources

    resources.register(server)


def _transfer_commands() -> Mapping[str, Command]:
    from capsule_cli.commands.transfer import transfer

    return {
        "import": transfer.import_,
        "export": transfer.export,
    }


ROOM = Room(
    "transfer",
    objects={
        "import_": _import,
        "export": _export,
    },
    commands={
        "import, export": _transfer_commands,
    },
    help=(
        (
            "Look after the store",
            5,
            "import, export",
            "Import and export conversations.",
        ),
    ),
    forget_purged=_forget_purged,
    register_resources=_register_resources,
)
