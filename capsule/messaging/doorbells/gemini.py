"""Gemini CLI: told at the next turn, by its hooks; nothing wakes it.

Contract, https://geminicli.com/docs/hooks/reference: "Silence is Mandatory", nothing but JSON on standard output;
`additionalContext` of `SessionStart` is "injected as the first turn in history", and that of `BeforeAgent` is
"appended to the prompt for this turn only". `timeout` is in milliseconds.
"""

from __future__ import annotations

#: Its events at which it is told what is unread, and what an entry in its settings says besides the command.
EVENTS = {"SessionStart": {"timeout": 10_000}, "BeforeAgent": {"timeout": 10_000}}
