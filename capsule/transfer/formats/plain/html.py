"""A page in HTML: one file that loads nothing, opens without a network, and can be read without its script.

What must stay true: whatever a message says is text. Markdown is drawn without HTML in it, links lead to web and mail
addresses only, and the page's policy allows its own style and its own script and nothing from elsewhere. Without the
script all messages stand in their order; with it one branch does, and the buttons beside a message step through its
siblings. Pure.
"""

from __future__ import annotations

import html
import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from typing import Any

import orjson

from capsule.format.tree.tree import Tree
from capsule.timestamps import known
from capsule.transfer.drafts.branches import active_line
from capsule.transfer.interface import Draft, Fields, Format
from capsule.transfer.records.coercion import data_url, text_of

#: The images that are shown; an SVG could hold a script.
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
#: Larger blocks of code are not coloured, and larger texts not drawn as Markdown, in characters.
_MOST_CODE, _MOST_TEXT = 200_000, 1_000_000
_LINK = r"(?i)(https?|mailto):"

_STYLE = """
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}
article{border-left:3px solid #8888;margin:1rem 0;padding:.1rem 1rem;overflow-wrap:anywhere}
article.user{border-color:#2a7}article.assistant{border-color:#47c}article.aside{opacity:.75}article[hidden]{display:none}
header{font-size:.85rem;opacity:.8;display:flex;gap:.6rem;flex-wrap:wrap}header b{font-weight:600}
pre{overflow:auto;padding:.6rem;background:#8881;border-radius:4px}code{font-family:ui-monospace,monospace;font-size:.9em}
img{max-width:100%}table{border-collapse:collapse}td,th{border:1px solid #8886;padding:.2rem .5rem}
button{font:inherit;padding:0 .4rem}
"""
_SCRIPT = """
(()=>{const all=[...document.querySelectorAll("article")],by=new Map(all.map(a=>[a.id,a])),kids=new Map();
for(const a of all){const p=a.dataset.parent||"";kids.has(p)||kids.set(p,[]);kids.get(p).push(a)}
const chosen=new Map();
for(let a=by.get(document.body.dataset.current);a;a=by.get(a.dataset.parent))chosen.set(a.dataset.parent||"",a);
const draw=()=>{for(const a of all)a.hidden=true;
for(let p="";kids.has(p);){const at=p,list=kids.get(p),a=chosen.get(p)||list[list.length-1];a.hidden=false;
a.classList.remove("aside");const nav=a.querySelector("nav");nav.textContent="";
if(list.length>1){const i=list.indexOf(a),step=(n,t)=>{const b=document.createElement("button");b.textContent=t;
b.disabled=!list[i+n];b.setAttribute("aria-label",n<0?"Previous branch":"Next branch");
b.onclick=()=>{chosen.set(at,list[i+n]);draw();list[i+n].querySelector("button:not(:disabled)")?.focus()};return b};
nav.append(step(-1,"\\u2039"),` ${i+1} of ${list.length} `,step(1,"\\u203a"))}p=a.id}};
draw()})();
"""


@cache
def _markdown() -> Any:
    """Markdown without HTML and without images, which would be loaded; with tables, and colours in code."""
    from markdown_it import MarkdownIt

    made = MarkdownIt("commonmark", {"html": False, "highlight": _highlighted})
    made.enable(["table", "strikethrough"]).disable("image")
    made.validateLink = lambda url: re.match(_LINK, url) is not None  # type: ignore[method-assign]
    return made


def _highlighted(code: str, language: str, attributes: str) -> str:
    """Code in colours; an empty text if the language is not known, so that it is only escaped."""
    from pygments import highlight
    from pygments.formatters.html import HtmlFormatter
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    if not language or len(code) > _MOST_CODE:
        return ""
    try:
        lexer = get_lexer_by_name(language.partition(" ")[0])
    except ClassNotFound:
        return ""
    return str(highlight(code, lexer, HtmlFormatter(nowrap=True)))


@cache
def _colours() -> str:
    from pygments.formatters.html import HtmlFormatter

    def colours(style: str) -> str:
        return str(HtmlFormatter(style=style).get_style_defs("pre"))  # type: ignore[no-untyped-call]

    light, dark = colours("default"), colours("github-dark")
    return f"{light}\n@media(prefers-color-scheme:dark){{{dark}}}\npre{{background:#8881!important}}"


def _text(text: str) -> str:
    if len(text) > _MOST_TEXT:
        return f"<pre>{html.escape(text)}</pre>"
    return str(_markdown().render(text))


def _folded(title: str, text: str, *, is_open: bool = False) -> str:
    return (
        f"<details{' open' * is_open}><summary>{html.escape(title)}</summary><pre>{html.escape(text)}</pre></details>"
    )


def _attached(attached: Fields) -> str:
    name, kind, data = text_of(attached.get("name")) or "attachment", attached.get("type"), attached.get("data")
    if isinstance(data, bytes) and kind in _IMAGES:
        return f'<p><img alt="{html.escape(name)}" src="{data_url(kind, data)}"></p>'
    if isinstance(attached.get("text"), str):
        return _folded(name, attached["text"])
    return f"<p>Attachment: {html.escape(name)}</p>"


def _article(entry: Fields, number: int, parent: int | None, is_aside: bool) -> str:
    role, time = entry["role"], html.escape(known(text_of(entry.get("timestamp"))))
    who = html.escape(text_of(entry.get("from")) or role.capitalize())
    about = [
        f"<b>{who}</b>",
        html.escape(text_of(entry.get("model"))),
        time and f"<time>{time[:16].replace('T', ' ')}</time>",
    ]
    if is_aside and parent is not None:
        about.append(f'another branch, after <a href="#m{parent}">this message</a>')
    body = [_folded("Reasoning", text_of(entry["reasoning"]))] if entry.get("reasoning") else []
    body.append(f"<pre>{html.escape(entry['content'])}</pre>" if role == "tool" else _text(entry["content"]))
    for call in entry.get("toolCalls") or ():
        arguments = orjson.dumps(call.get("arguments"), option=orjson.OPT_INDENT_2).decode()
        body.append(_folded(f"Tool call: {text_of(call.get('name'))}", arguments))
    body += [_attached(attached) for attached in entry.get("attachments") or ()]
    above = "" if parent is None else f' data-parent="m{parent}"'
    aside = " aside" if is_aside else ""
    lines = "\n".join(part for part in about if part)
    header = f"<header>{lines}<nav></nav></header>"
    return f'<article class="{role}{aside}" id="m{number}"{above}>{header}\n{"".join(body)}</article>'


def _write(draft: Draft) -> bytes:
    tree, line = Tree(draft.history), {id(entry) for entry in active_line(draft.head, draft.history)}
    articles = []
    current = 0
    for number, entry in enumerate(draft.history):
        is_active, above = id(entry) in line, tree.parents[number]
        current = number if is_active else current
        articles.append(_article(entry, number, above if above >= 0 else None, not is_active))
    title = html.escape(text_of(draft.head.get("title")) or "Untitled")
    style, script = _STYLE + _colours(), _SCRIPT
    digest = b64encode(sha256(script.encode()).digest()).decode()
    allowed = f"img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="referrer" content="no-referrer">
<title>{title}</title><style>{style}</style></head>
<body data-current="m{current}"><h1>{title}</h1>
{chr(10).join(articles)}
<script>{script}</script></body></html>
""".encode()


_ABOUT: Fields = {"extension": ".html", "embeds_files": True, "is_portable": False, "plain": _write}
FORMATS = [Format("html", "HTML page", lambda source: False, None, _write, **_ABOUT)]
