"""Write a conversation as a page in HTML: one file that loads nothing and needs no network.

Messages are drawn as on the page of the browser (`capsule.transfer.rendering`). Without the page's
script all messages are shown in their order. With it one branch is shown, and the buttons beside a
message change to its siblings. A page of a site is the same, but shares style and script with the
others.

Invariants: texts of messages are never markup. The page's policy allows its own style and script,
and nothing from elsewhere. No id of the store is in the page. Pure.
"""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING

from capsule.errors import Refused
from capsule.format.tree.tree import Tree
from capsule.transfer.drafts.conversion import active_path
from capsule.transfer.interface import Draft, Fields, Format
from capsule.transfer.records.mapping import text_of, with_nonempty, without

if TYPE_CHECKING:
    from markupsafe import Markup

STYLE = """
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;
background:light-dark(#fff,#16181d);color:light-dark(#1b1f24,#e4e7eb)}button{font:inherit;padding:0 .4rem}
"""
SCRIPT = """
(()=>{const all=[...document.querySelectorAll(".message")],by=new Map(all.map(a=>[a.id,a])),kids=new Map();
for(const t of document.querySelectorAll("time"))t.textContent=new Date(t.dateTime).toLocaleString();
for(const a of all){const p=a.dataset.parent||"";kids.has(p)||kids.set(p,[]);kids.get(p).push(a)}
const chosen=new Map();
const choose=id=>{for(let a=by.get(id);a;a=by.get(a.dataset.parent))chosen.set(a.dataset.parent||"",a)};
const draw=()=>{for(const a of all)a.hidden=true;
for(let p="";kids.has(p);){const at=p,list=kids.get(p),a=chosen.get(p)||list[list.length-1];a.hidden=false;
delete a.dataset.aside;const nav=a.querySelector(".nav");nav.textContent="";
if(list.length>1){const i=list.indexOf(a),step=(n,t)=>{const b=document.createElement("button");b.textContent=t;
b.disabled=!list[i+n];b.setAttribute("aria-label",n<0?"Previous branch":"Next branch");
b.onclick=()=>{chosen.set(at,list[i+n]);draw();list[i+n].querySelector("button:not(:disabled)")?.focus()};return b};
nav.append(step(-1,"\\u2039"),` ${i+1} of ${list.length} `,step(1,"\\u203a"))}p=a.id}};
const go=()=>{const id=location.hash.slice(1),a=by.get(id);choose(id);draw();
for(let d=a;d;d=d.parentElement)if(d.localName==="details")d.open=true;a?.scrollIntoView()};
choose(document.body.dataset.current);go();addEventListener("hashchange",go)})();
"""


def _policy(sources: str) -> str:
    """Return the policy of a page that may load only these sources."""
    return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"


#: The policy of a page of a site, which may load the site's files. For a page that is opened from
#: the disk, `'self'` is no file in Firefox. A page of a server can load no file of the disk.
SITE_POLICY = _policy("img-src 'self' file:; style-src 'self' file:; script-src 'self' file:")
_ASIDE_NOTE = 'another branch, after <a href="#m-{}">this message</a>'
#: The most lines of code that get colours.
_MAX_COLOURED_LINES = 50_000


@contextmanager
def drawing() -> Iterator[None]:
    """Report a missing package in the block, which imports the drawing of messages. Raises Refused."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = f"a page in HTML needs {error.name}, which is not installed"
        raise Refused(f"{missing}: pip install 'capsule-conversations[web]'", path="") from error


def page(draft: Draft, file_url: Callable[[str], str] | None = None) -> bytes:
    """Return a conversation as a page.

    Args:
        draft: The conversation.
        file_url: For a page of a site: returns the address of an attachment by its SHA-256, or an
            empty one. The page is in a folder beside the shared files then. None: the page stands
            alone.

    Raises:
        Refused: A package is missing.
    """
    with drawing():
        from capsule.transfer.rendering.messages import STYLES, RenderOptions, render
    entries, active_ids = _entries_of_page(draft)
    parents = {entry["id"]: entry["parent"] for entry in entries}
    options = RenderOptions(
        file_url=file_url,
        nav=lambda entry: _aside_note(entry["id"], parents, active_ids),
        attributes=lambda entry: _attributes(entry["id"], parents, active_ids),
        lines=_MAX_COLOURED_LINES,
    )
    messages = "\n".join(render(entries, options))
    current = next((entry["id"] for entry in reversed(entries) if entry["id"] in active_ids), "0")
    title = html.escape(text_of(draft.head.get("title")) or "Untitled")
    if file_url is None:
        digest = b64encode(sha256(SCRIPT.encode()).digest()).decode()
        policy = _policy(f"img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'")
        style = f"<style>{STYLES.read_text('utf-8')}{STYLE}</style>"
        script = f"<script>{SCRIPT}</script>"
        index_link = ""
    else:
        policy = SITE_POLICY
        style = '<link rel="stylesheet" href="../style.css">'
        script = '<script src="../script.js"></script>'
        index_link = '<nav><a href="../index.html">All conversations</a></nav>'
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="referrer" content="no-referrer">
<title>{title}</title>{style}</head>
<body data-current="m-{current}">{index_link}<main><h1>{title}</h1>
{messages}
</main>
{script}</body></html>
""".encode("utf-8", "replace")


def _entries_of_page(draft: Draft) -> tuple[list[Fields], set[str]]:
    """Return the messages with their positions as ids, and the ids of the active branch."""
    parents = Tree(draft.history).parents
    active = {id(entry) for entry in active_path(draft.head, draft.history)}
    positions = {
        entry["id"]: str(position) for position, entry in enumerate(draft.history) if "id" in entry
    }
    entries: list[Fields] = []
    active_ids: set[str] = set()
    for position, entry in enumerate(draft.history):
        page_id = str(position)
        reply_to = positions.get(entry.get("replyTo"))
        page_entry = with_nonempty(without(entry, "replyTo"), replyTo=reply_to)
        parent = parents[position]
        page_entry |= {"id": page_id, "parent": str(parent) if parent >= 0 else None}
        entries.append(page_entry)
        if id(entry) in active:
            active_ids.add(page_id)
    return entries, active_ids


def _aside_note(id: str, parents: dict[str, str | None], active_ids: set[str]) -> str | Markup:
    """Return a link to the parent of a message in another branch. Empty: it is a root or active."""
    from markupsafe import Markup

    parent = parents[id]
    return "" if id in active_ids or not parent else Markup(_ASIDE_NOTE).format(parent)


def _attributes(id: str, parents: dict[str, str | None], active_ids: set[str]) -> dict[str, str]:
    """Return the attributes of a message's element, which the script reads."""
    attributes = {}
    if id not in active_ids:
        attributes["data-aside"] = ""
    parent = parents[id]
    if parent:
        attributes["data-parent"] = f"m-{parent}"
    return attributes


FORMATS = [
    Format(
        "html",
        "HTML page",
        recognizes=lambda source: False,
        read=None,
        write=page,
        extension=".html",
        embeds_files=True,
        is_portable=False,
        plain=page,
    )
]
