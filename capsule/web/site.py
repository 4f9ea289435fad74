"""The parts that all pages of a server share: the store, the sign-in of visitors, the templates, and
the files of the program (scripts and styles).

One `WebSite` is made for each server. Templates and files are loaded at their first use.
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
    from capsule.mcp_server.access import Tokens

#: The greatest numbers of connections: of all, of all without a cookie, and of those without a cookie
#: from one address (possibly a proxy). A browser opens up to six.
_CONNECTIONS: Final = (512, 256, 128)
#: The media types of the program's own files, by the ends of their names.
TYPES: Final = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


class WebSite:
    """The parts that all pages of a server share.

    Attributes:
        store: The store, opened for the owner or the agent that started the server.
        admission: Decides which visitors may enter.
        cookie: The name of the store's cookie.
        connections: Counts the connections of the server.
        preparation: Brings the index up to date at the first visit.
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
        contents = {STYLES.name: STYLES.read_bytes()}
        for file in files("capsule.web").joinpath("static").iterdir():
            if file.name.rpartition(".")[2] in TYPES:
                contents[file.name] = file.read_bytes()
        return contents

    @cached_property
    def version(self) -> str:
        """A hash of these files. It is a part of their addresses, so that browsers may cache them."""
        contents = [content for _, content in sorted(self.static.items())]
        return sha256(b"".join(contents)).hexdigest()[:16]

    @cached_property
    def templates(self) -> jinja2.Environment:
        """The templates, with their filters, functions and macros."""
        import jinja2

        environment = jinja2.Environment(
            loader=jinja2.ChoiceLoader(
                [jinja2.PackageLoader("capsule.web"), jinja2.FileSystemLoader(TEMPLATES)]
            ),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters |= words.FILTERS
        environment.globals["address"] = words.address
        environment.globals["new_id"] = new_id
        environment.globals["static"] = lambda name: f"/static/{self.version}/{name}"
        macros = vars(environment.get_template("pieces.html").module)
        for name, macro in macros.items():
            if not name.startswith("_"):
                environment.globals[name] = macro
        return environment

    def draw(self, template_name: str, block_name: str = "", **values: Any) -> str:
        """Return the text of a template, or of one of its blocks, if it has one of this name."""
        template = self.templates.get_template(template_name)
        if block_name in template.blocks:
            context = template.new_context({**values})
            return "".join(template.blocks[block_name](context))
        return template.render(**values)
