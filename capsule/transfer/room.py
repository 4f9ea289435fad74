"""What this room adds."""

from __future__ import annotations

from capsule.rooms import Room

ROOM = Room(
    "transfer",
    objects={
        "import_": "capsule.transfer.importing:Import",
        "export": "capsule.transfer.exporting:Export",
    },
    package="capsule_cli.commands.transfer",
    commands={"transfer": "import, export"},
    help=(
        ("Look after the store", 5, "import, export", "Bring in what other programs keep, or out."),
    ),
    keepers={"import_": "forget"},
    resources="capsule.transfer.resources:register",
)
