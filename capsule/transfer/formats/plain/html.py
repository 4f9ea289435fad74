"""A page in HTML: one file that loads nothing, opens without a network, and can be read without its
script.

What must stay true: messages are drawn as on the page of the browser
(`capsule.transfer.rendering`), and whatever one says is text. The page's policy allows its own
style and its own script and nothing from elsewhere. Without the script all messages stand in their
order; with it one branch does, and the buttons beside a message step through its siblings. No id of
the store is in the page. A page of a site is the same, but shares style and script with the others.
Pure.
"""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256

from capsule.errors import Refused
from capsule.format.tree.tree import Tree
from capsule.transfer.drafts.conversion import active_path
from capsule.transfer.interface import Draft, Fields, Format
from capsule.transfer.records.coercion import text_of, with_nonempty, without

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
#: What a page of a site may load: its own files. Of a page that is opened from the disk Firefox
#: takes no file for its own (`'self'`), and a page of a server can load none of the disk.
SITE_POLICY = "img-src 'self' file:; style-src 'self' file:; script-src 'self' file:"
SITE_POLICY = f"default-src 'none'; {SITE_POLICY}; base-uri 'none'; form-action 'none'"


@contextmanager
def drawing() -> Iterator[None]:
    """Import what draws messages in this block. Raises Refused: a package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = f"a page in HTML needs {error.name}, which is not installed"
        raise Refused(f"{missing}: pip install 'capsule-conversations[web]'", path="") from error


def page(draft: Draft, file_url: Callable[[str], str] | None = None) -> bytes:
    """A conversation as a page.

    Args:
        draft: The conversation.
        file_url: For a page of a site, in a folder beside its shared files: the address of an
            attachment by its SHA-256, or an empty one. None: the page stands alone.

    Raises Refused: a package is missing.
    """
    with drawing():
        from markupsafe import Markup

        from capsule.transfer.rendering.messages import STYLES, RenderOptions, render
    tree, line = (
        Tree(draft.history),
        {id(entry) for entry in active_path(draft.head, draft.history)},
    )
    places = {entry["id"]: str(place) for place, entry in enumerate(draft.history) if "id" in entry}
    entries: list[Fields] = []
    navs: dict[str, str] = {}
    for place, entry in enumerate(draft.history):
        above = str(tree.parents[place]) if tree.parents[place] >= 0 else None
        said = with_nonempty(without(entry, "replyTo"), replyTo=places.get(entry.get("replyTo")))
        entries.append(said | {"id": str(place), "parent": above})
        if id(entry) not in line:
            answers = Markup('another branch, after <a href="#m-{}">this message</a>').format(above)
            navs[str(place)] = answers if above else ""
    current = next((entry["id"] for entry in reversed(entries) if entry["id"] not in navs), "0")
    how = RenderOptions(
        file_url=file_url,
        nav=lambda entry: navs.get(entry["id"], ""),
        attributes=lambda entry: with_nonempty(
            {"data-aside": ""} if entry["id"] in navs else {},
            **{"data-parent": entry["parent"] and f"m-{entry['parent']}"},
        ),
        lines=50_000,
    )
    messages = "\n".join(render(entries, how))
    title = html.escape(text_of(draft.head.get("title")) or "Untitled")
    digest = b64encode(sha256(SCRIPT.encode()).digest()).decode()
    allowed = f"img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    style, script, way = (
        f"<style>{STYLES.read_text('utf-8')}{STYLE}</style>",
        f"<script>{SCRIPT}</script>",
        "",
    )
    if file_url is not None:
        policy, style = SITE_POLICY, '<link rel="stylesheet" href="../style.css">'
        script, way = (
            '<script src="../script.js"></script>',
            '<nav><a href="../index.html">All conversations</a></nav>',
        )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="referrer" content="no-referrer">
<title>{title}</title>{style}</head>
<body data-current="m-{current}">{way}<main><h1>{title}</h1>
{messages}
</main>
{script}</body></html>
""".encode("utf-8", "replace")


_ABOUT: Fields = {"extension": ".html", "embeds_files": True, "is_portable": False, "plain": page}
FORMATS = [Format("html", "HTML page", lambda source: False, None, page, **_ABOUT)]
