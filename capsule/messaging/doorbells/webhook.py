"""A webhook: `{"text": ...}` is sent to an address, which is what Slack, Mattermost and others take."""

from __future__ import annotations

from capsule.messaging.doorbells import programs
from capsule.messaging.doorbells.interface import Target


class Webhook:
    """See the module. The address: `url`."""

    name = "webhook"
    watches = False

    def ring(self, target: Target, text: str) -> bool:
        """Send the text."""
        return programs.post(target.address["url"], {"text": text}) < 300


DOORBELL = Webhook()
