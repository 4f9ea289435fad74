"""Signs in with a token that is typed into a form, and signs out.

What must stay true: the token is in the body of the form, so no history, log or link has it. The
form is read before the visitor is known, so its size and time are limited. The owner can sign out
all browsers. An agent with a token signs out only its own browser.
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

#: The greatest size of the form.
_MAX_BYTES = 8192


async def _enter(request: Request) -> Response:
    site: WebSite = request.app.state.site
    if request.method != "POST":
        return entrance(site, request)
    try:
        body = await read_body(request, _MAX_BYTES)
        fields = parse_qs(body.decode("utf-8", "replace"))
    except (ValueError, TimeoutError) as error:
        return Response(f"{error}\n", 400, {"connection": "close"}, media_type="text/plain")
    token = fields.get("token", [""])[0]
    visitor = await to_thread.run_sync(site.admission.admit, token.strip())
    if visitor is None:
        return entrance(
            site,
            request,
            error="This token is not known here, or was used, revoked or has expired.",
        )
    answer = RedirectResponse(local(fields.get("to", ["/"])[0]), status_code=303)
    site.admission.sign_in(answer, visitor, request)
    return answer


def _sign_out(view: View) -> Response:
    admission = view.site.admission
    if view.field("where") == "everywhere":
        if view.visitor.token:
            raise Refused(
                "only the store's owner ends the page in every browser; capsule mcp tokens revoke",
                path="",
            )
        admission.sign_out_everywhere()
    answer = view.answer_change("/")
    for name in (admission.cookie, admission.cookie + AS):
        admission.set_cookie(answer, name, "", 0, view.request)
    return answer


ROUTES = [
    Route(ENTRANCE, _enter, methods=["GET", "POST"]),
    post("/sign-out", _sign_out, scope="read"),
]
