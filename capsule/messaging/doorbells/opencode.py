"""OpenCode: `POST /session/{id}/prompt_async` of its server.

Contract, https://opencode.ai/docs/server: "Send a message asynchronously (no wait)", with the body of
`/session/{id}/message`, answered with 204. Its server answers what it does not know with 200 and a page.
"""

from __future__ import annotations

from capsule.messaging.doorbells import programs
from capsule.messaging.doorbells.interface import Target


class OpenCode:
    """See the module. The address: `url`, the session's, like `http://127.0.0.1:4096/session/ses_1f3c`."""

    name = "opencode"
    watches = False

    def ring(self, target: Target, text: str) -> bool:
        """Give the session the text as a prompt."""
        url = target.address["url"].rstrip("/")
        return programs.post(f"{url}/prompt_async", {"parts": [{"type": "text", "text": text}]}) == 204


DOORBELL = OpenCode()
