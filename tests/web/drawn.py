"""What a page draws, without a browser: its text, and its forms, which can be sent as a browser
would send them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

from tests.web.test_admission import Answer, Door

_NO_TEXT = ("script", "style", "title")


@dataclass
class Form:
    """A form: where it goes, how, the values of its fields, and its buttons with their name and
    value.
    """

    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)
    buttons: dict[str, tuple[str, str]] = field(default_factory=dict)


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.forms: list[Form] = []
        self._silent = self._select = ""
        self._button: tuple[str, str] | None = None
        self._label: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.texts.append(" ")
        if tag in _NO_TEXT and self._silent == "":
            self._silent = tag
        if tag == "form":
            self.forms.append(Form(given.get("action", ""), given.get("method", "get")))
        elif tag == "input" and given.get("type") != "checkbox" and self.forms:
            self.forms[-1].fields[given.get("name", "")] = given.get("value", "")
        elif tag == "select":
            self._select = given["name"]
        elif tag == "option" and ("selected" in given or self._select not in self.forms[-1].fields):
            self.forms[-1].fields[self._select] = given.get("value", "")
        elif tag == "button":
            self._button, self._label = (given.get("name", ""), given.get("value", "")), []

    def handle_endtag(self, tag: str) -> None:
        if tag == self._silent:
            self._silent = ""
        if tag == "button" and self._button is not None:
            self.forms[-1].buttons[" ".join("".join(self._label).split())] = self._button
            self._button = None

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.texts.append(data)
            self._label.append(data)


def _parsed(answer: Answer) -> _Parser:
    parser = _Parser()
    parser.feed(answer.text)
    parser.close()
    return parser


def text(answer: Answer) -> str:
    """The text of a page, as `textContent` has it, with one space between words and before each
    element.
    """
    return " ".join("".join(_parsed(answer).texts).split())


def buttons(answer: Answer) -> list[str]:
    """The words of all buttons of a page that change something."""
    return [
        label for form in _parsed(answer).forms if form.method == "post" for label in form.buttons
    ]


def press(door: Door, path: str, button: str, **fields: str) -> Answer:
    """Press a button of a page, with some fields of its form filled in. Fails if there is no such
    button.
    """
    forms = [
        form
        for form in _parsed(door.ask(path)).forms
        if button in form.buttons and {*fields} <= {*form.fields}
    ]
    assert forms, f"{path} has no button {button!r} with {[*fields]}: {buttons(door.ask(path))}"
    (name, value), form = forms[0].buttons[button], forms[0]
    sent = form.fields | fields | ({name: value} if name else {})
    return door.ask(form.action or path, sent)
