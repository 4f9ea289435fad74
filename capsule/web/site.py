"""What all pages of a server share: the store, who is let in, the templates, and the program's own
files.
"""

from __future__ import annotations

from functools import cached_property
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from capsule.connections import Connections
from capsule.ids import new_id
from capsule.transfer.rendering.messages import STYLES, TEMPLATES
from capsule.web import words
from capsule.web.admission import Admission
from capsule.web.preparing import Preparation

if TYPE_CHECKING:
    import jinja2

    from capsule import Store
    from capsule.mcp_server.transport.tokens import Tokens

#: Connections at once, of which a browser has up to six; those without a cookie, and of these those
#: of one address, which may be a proxy's.
_CONNECTIONS: Final = (512, 256, 128)
#: The media types of the program's own files, by the ends of their names.
TYPES: Final = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


class WebSite:
    """What all pages of a server share.

    Attributes:
        store: The store, of whoever the server was started for.
        admission: Who is let in.
        cookie: The name of the store's cookie.
        connections: Those of the server.
        preparation: The wait for the index.
    """

    def __init__(self, store: Store, tokens: Tokens) -> None:
        self.store = store
        self.admission = Admission(store.inner.whole_engine.local, tokens, store.root, store.agent)
        self.cookie = self.admission.cookie
        self.connections = Connections(*_CONNECTIONS)
        self.preparation = Preparation(lambda report: store.list(limit=1, progress=report))

    def opening(self, address: str) -> str:
        """Return an address that opens the page once, by the address of the server."""
        return f"{address}/?token={self.admission.token()}"

    @cached_property
    def static(self) -> dict[str, bytes]:
        """The program's own files, by name."""
        there = files("capsule.web").joinpath("static").iterdir()
        own = {
            file.name: file.read_bytes() for file in there if file.name.rpartition(".")[2] in TYPES
        }
        return own | {STYLES.name: STYLES.read_bytes()}

    @cached_property
    def version(self) -> str:
        """What stands in the addresses of these files, so that browsers may keep them."""
        return sha256(b"".join(value for _, value in sorted(self.static.items()))).hexdigest()[:16]

    @cached_property
    def templates(self) -> jinja2.Environment:
        """The templates."""
        import jinja2

        made = jinja2.Environment(
            loader=jinja2.ChoiceLoader(
                [jinja2.PackageLoader("capsule.web"), jinja2.FileSystemLoader(TEMPLATES)]
            ),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        made.filters |= words.FILTERS
        made.globals["address"], made.globals["new_id"] = words.address, new_id
        made.globals["static"] = lambda name: f"/static/{self.version}/{name}"
        pieces = vars(made.get_template("pieces.html").module)
        made.globals |= {name: piece for name, piece in pieces.items() if not name.startswith("_")}
        return made

    def draw(self, template: str, part: str = "", **shown: Any) -> str:
        """The text of a template, or of the one block of it that is named `part`, if it has one."""
        made = self.templates.get_template(template)
        if part in made.blocks:
            return "".join(made.blocks[part](made.new_context({**shown})))
        return made.render(**shown)
