"""Recognize conflict copies by their names.

If two versions of a file were changed at the same time, a file synchronizer keeps one of them under
another name: a conflict copy.

What must stay true: a name that may be an id counts as a copy's only if it has a mark that no
person types. Pure.

| program | name of the copy of `x.json` |
| --- | --- |
| Syncthing (docs.syncthing.net, "Conflicting changes") | `x.sync-conflict-20250112-103000-ABCDEFG.json` |
| Dropbox (help.dropbox.com, "What's a conflicted copy?") | `x (Anna's conflicted copy 2025-01-12).json` |
| Nextcloud, ownCloud (since 2.5) | `x (conflicted copy 2025-01-12 103000).json`, with a user before the date too |
| ownCloud before that | `x_conflict-20250112-103000.json`, `x_conflict-anna-20250112-103000.json` |
| Seafile | `x (SFConflict anna@example.org 2025-01-12-10-30-00).json` |
| pCloud | `x [conflicted].json`, `x (conflicted).json` |
| iCloud Drive | `x 2.json` |
| OneDrive, Google Drive | `x (1).json`; OneDrive also the computer's name: `x-DESKTOP-AB12CD.json` |
"""

from __future__ import annotations

import re
from functools import cache

from capsule.ids import is_id

_MARKS = r"""
    \.sync-conflict-[0-9]{8}-[0-9]{6}(?:-[A-Z2-7]{7})?
  | _conflict-(?:[^/]*-)?[0-9]{8}-?[0-9]{6}
  | [ ]\((?:[^()]*[ ])?conflicted[ ]copy(?:[ ,][^()]*)?\)
  | [ ]\(SFConflict[ ][^()]*\)
  | [ ][(\[]conflict(?:ed)?[)\]]
  | [ ]?\([0-9]{1,3}\)
  | [ ][0-9]{1,3}
"""
#: OneDrive appends this to a name. A person may do so too, so the content has the last word.
_COMPUTER = r"-(?=[^/]*[A-Z])[A-Za-z0-9-]{1,63}"
_ID = r"(?P<id>[A-Za-z0-9][A-Za-z0-9._@-]*?)"


@cache
def _pattern(*, computers: bool) -> re.Pattern[str]:
    """Return the pattern of the marks, compiled when it is first used, so that a list starts fast.

    `computers`: also the names of computers, and without the id before the marks.
    """
    if computers:
        return re.compile(rf"(?:(?i:{_MARKS})|{_COMPUTER})+", re.VERBOSE)
    return re.compile(rf"{_ID}(?:{_MARKS})+", re.VERBOSE | re.IGNORECASE)


def original_of(name: str) -> str | None:
    """Return the id of the conversation that a file is a copy of, by its name without `.json`.

    None: the name is not that of a copy.
    """
    if "conflict" not in name.lower() and not name.endswith((")", *"0123456789")):
        return None
    if is_id(name) and "conflict-" not in name:
        return None
    match = _pattern(computers=False).fullmatch(name)
    return match["id"] if match and is_id(match["id"]) else None


def may_be_copy_of(name: str, id: str) -> bool:
    """Return whether a file with the conversation `id` may be a synchronizer's copy, by its name."""
    if original_of(name) == id:
        return True
    return name.startswith(id) and _pattern(computers=True).fullmatch(name[len(id) :]) is not None
