"""Which program a file may come from whose format is not read. A guess is no promise: it only names
the file. Pure.
"""

from __future__ import annotations

import re

#: A program, what the path of its files has, and what their content begins with or has.
_PROGRAMS: tuple[tuple[str, str, bytes], ...] = (
    (
        "VS Code Copilot",
        r"/chatSessions/[^/]+\.jsonl?$",
        rb'"responderUsername"\s*:\s*"GitHub Copilot',
    ),
    ("Copilot CLI", r"\.copilot/(?:history-)?session-state/", b""),
    ("aider", r"\.aider\.chat\.history\.md$", rb"\A\s*# aider chat started at "),
    ("Cline or Roo Code", r"/(?:api_conversation_history|ui_messages)\.json$", b""),
    ("Continue", r"\.continue/sessions/[^/]+\.json$", b""),
    ("Qwen Code", r"\.qwen/.*\.jsonl?$", b""),
    ("Goose", r"/goose/sessions/", b""),
    ("Zed", r"/zed/threads/", b""),
    ("Windsurf", r"\.codeium/windsurf/", b""),
    ("Amp", r"/amp/threads/[^/]+\.json$", b""),
    ("LM Studio", r"\.conversation\.json$", b""),
    ("SillyTavern", "", rb'\A\s*\{[^\n]*"chat_metadata"\s*:'),
)


def program_of(name: str, head: bytes) -> str:
    """Return the program that a file may come from. Empty: there is no guess.

    Args:
        name: The path of the file.
        head: The beginning of its content.
    """
    path = "/" + name.replace("\\", "/")
    for program, of_path, of_head in _PROGRAMS:
        if of_path and re.search(of_path, path):
            return program
        if of_head and re.search(of_head, head):
            return program
    return ""
