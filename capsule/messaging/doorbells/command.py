"""Any program: a command that gets the text on its standard input."""

from __future__ import annotations

import shlex

from capsule.messaging.doorbells import programs
from capsule.messaging.doorbells.interface import Target


class Command:
    """See the module. The address: `command`, its words, quoted as for a shell; no shell reads them."""

    name = "command"
    watches = False

    def ring(self, target: Target, text: str) -> bool:
        """Run the command; it took the text when its exit code is 0."""
        return programs.run(shlex.split(target.address["command"]), text)


DOORBELL = Command()
