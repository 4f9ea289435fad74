"""The way in with a token that is entered, and the way out.

What must stay true: a token comes in the body of a form, so that no history, log or link has it; it
is read before anybody is known, so it is small and comes in time. Whoever may open the page by the
server's own address may also end all its cookies; an agent with a token ends those of its browser.
"""

from __future__ import annotations

from urllib.parse import parse_qs

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from capsule.connections import read_body
from capsule.errors import Refused
from capsule.web.gate import ENTRANCE, entrance, local
from capsule.web.site import WebSite
from capsule.web.view import AS, View, post

#: Bytes that the form may have.
_MOST_BYTES = 8192


async def _enter(request: Request) -> Response:
    site: WebSite = request.app.state.site
    if request.method != "POST":
        return entrance(site, request)
    try:
        sent = parse_qs((await read_body(request, _MOST_BYTES)).decode("utf-8", "replace"))
    except (ValueError, TimeoutError) as error:
        return Response(f"{error}\n", 400, {"connection": "close"}, media_type="text/plain")
    token = sent.get("token", [""])[0]
    visitor = await to_thread.run_sync(site.admission.admit, token.strip())
    if visitor is None:
        return entrance(
            site,
            request,
            error="This token is not known here, or was used, revoked or has expired.",
        )
    answer = RedirectResponse(local(sent.get("to", ["/"])[0]), status_code=303)
    site.admission.sign_in(answer, visitor, request)
    return answer


def _sign_out(view: View) -> Response:
    admission = view.site.admission
    if view.sent("where") == "everywhere":
        if view.visitor.token:
            raise Refused(
                "only the store's owner ends the page in every browser; capsule mcp tokens revoke",
                path="",
            )
        admission.sign_out_everywhere()
    answer = view.done("/")
    for name in (admission.cookie, admission.cookie + AS):
        admission.set_cookie(answer, name, "", 0, view.request)
    return answer


ROUTES = [
    Route(ENTRANCE, _enter, methods=["GET", "POST"]),
    post("/sign-out", _sign_out, scope="read"),
]
