"""What must not get into a context unasked: files that hold keys, and tokens in the text of others.

The rules for tokens are those of detect-secrets, one detector for each kind of token; its detectors of high entropy
and of words like "password" are not asked, as in source code nearly all they find is none. What must stay true: a
token that is found is never shown whole.

All rules together read some 10 MB a second. So they are given only what a token can stand in: what surrounds a run of
20 or more letters, digits, `_`, `-`, `+` and `/` that looks like the beginning of one (a test holds these looks and the
rules together), and the lines with a few words that stand in keys and in addresses with a password. A token that is
shorter than 20 characters is not found, and no issuer makes such.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import translate
from functools import cache
from typing import Any

__all__ = ["Finding", "holds_secrets", "tokens_in"]

#: Names of files that are there to hold secrets, in lower case.
_FILES = (
    ".env",
    ".env.*",
    "*.env",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
    "*.kdbx",
    "*.ppk",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    ".netrc",
    "_netrc",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".htpasswd",
    ".git-credentials",
    "credentials.json",
    "service-account*.json",
    "secrets.y*ml",
    "secrets.json",
    "secrets.toml",
    "*.tfstate",
    "*.tfvars",
)
#: What looks like one of them and shows only which settings there are.
_HARMLESS = ("*.example", "*.sample", "*.template", "*.dist", "*.pub")
_DIRECTORIES = frozenset({".ssh", ".aws", ".gnupg", ".kube"})
_IS_SECRET = re.compile("|".join(map(translate, _FILES)))
_IS_HARMLESS = re.compile("|".join(map(translate, _HARMLESS)))

#: The detectors by name, and the modules they stand in.
DETECTORS = {
    "ArtifactoryDetector": "artifactory",
    "AWSKeyDetector": "aws",
    "AzureStorageKeyDetector": "azure_storage_key",
    "BasicAuthDetector": "basic_auth",
    "DiscordBotTokenDetector": "discord",
    "GitHubTokenDetector": "github_token",
    "GitLabTokenDetector": "gitlab_token",
    "JwtTokenDetector": "jwt",
    "MailchimpDetector": "mailchimp",
    "NpmDetector": "npm",
    "OpenAIDetector": "openai",
    "PrivateKeyDetector": "private_key",
    "PypiTokenDetector": "pypi_token",
    "SendGridDetector": "sendgrid",
    "SlackDetector": "slack",
    "SquareOAuthDetector": "square_oauth",
    "StripeDetector": "stripe",
    "TelegramBotTokenDetector": "telegram_token",
    "TwilioKeyDetector": "twilio",
}

_IN_RUN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+/")
_RUNS = bytes(97 if code in _IN_RUN else 32 for code in range(256))
_RUN = b"a" * 20
#: What a run has besides small letters, unless it is a name or a path.
_PLAIN = b"abcdefghijklmnopqrstuvwxyz_-/"
#: How a token looks within its run, and right before it.
_LOOKS = re.compile(
    rb"\AAKC|\AAP[0-9A-F]|A(?:KIA|SIA|BIA|CCA|3T[A-Z0-9])[0-9A-Z]{16}|gh[pousr]_|gl[a-z]{2,5}-|GR1348941|eyJ|-us[0-9]|npm_"
    rb"|T3BlbkFJ|pypi-Ag|xox[abposr]-|services/T|sq0csp-|k_live_|(?:AC|SK)[a-z0-9]{32}"
)
#: What stands before a run that may be a token for what stands there.
_MARKS = frozenset(b"'\".:=")
_KEY_WORDS = (b"PRIVATE KEY", b"PuTTY-User-Key-File")
_PASSWORD = re.compile(rb"://[^\s/@]{1,200}:[^\s/@]{1,200}@")

#: So many bytes before a place and behind it are given to the rules, as far as they are of the same line. Some rules
#: take a time that grows with the square of a line's length.
_AROUND = 512
_BEHIND = 1_200
#: So many findings of one file are told.
_MOST = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """A token in the text of a file: which kind, in which line (from 1), and its beginning: a quarter at most."""

    path: str
    line: int
    kind: str
    begins: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}" + (f" ({self.begins}...)" if self.begins else "")


def holds_secrets(path: str) -> bool:
    """Whether a file (relative, POSIX) is one that is there to hold secrets, by its name."""
    *directories, name = path.lower().split("/")
    if not _DIRECTORIES.isdisjoint(directories):
        return True
    return _IS_SECRET.match(name) is not None and _IS_HARMLESS.match(name) is None


def tokens_in(path: str, data: bytes) -> list[Finding]:
    """The tokens in a file's text, in the order of its lines; 20 at most."""
    found: dict[tuple[int, str, str], Finding] = {}
    for start, end in _windows(data):
        text = data[start:end].decode("utf-8", "replace")
        for detector in _detectors():
            for secret in detector.analyze_string(text):
                line = data.count(b"\n", 0, start) + 1
                begins = str(secret)[: min(4, len(secret) // 4)]
                found.setdefault(
                    (line, detector.secret_type, secret), Finding(path, line, detector.secret_type, begins)
                )
        if len(found) >= _MOST:
            break
    return sorted(found.values(), key=lambda finding: (finding.line, finding.kind))[:_MOST]


@cache
def _detectors() -> tuple[Any, ...]:
    from importlib import import_module

    return tuple(
        getattr(import_module(f"detect_secrets.plugins.{module}"), name)() for name, module in DETECTORS.items()
    )


def _windows(data: bytes) -> Iterator[tuple[int, int]]:
    """Where in a text a token may stand: pieces of lines."""
    last = (-1, -1)
    for begin, end in _places(data):
        if last[0] <= begin - _AROUND // 2 and end + _BEHIND // 2 <= last[1]:
            continue  # Well within the piece that was looked at just now.
        start = max(data.rfind(b"\n", 0, begin) + 1, begin - _AROUND)
        newline = data.find(b"\n", end)
        stop = min(newline if newline >= 0 else len(data), end + _BEHIND)
        if (start, stop) != last:
            yield start, stop
        last = (start, stop)


def _places(data: bytes) -> Iterator[tuple[int, int]]:
    runs = data.translate(_RUNS)
    find, at = runs.find, runs.find(_RUN)
    while at >= 0:
        end = find(b" ", at)
        if end < 0:
            end = len(data)
        run = data[at:end]
        if run.translate(None, _PLAIN) and _looks(data, at, run):
            yield at, end
        at = find(_RUN, end)
    for word in _KEY_WORDS:
        at = data.find(word)
        while at >= 0:
            yield at, at + len(word)
            at = data.find(word, at + 1)
    if b"@" in data:
        for match in _PASSWORD.finditer(data):
            yield match.span()


def _looks(data: bytes, at: int, run: bytes) -> bool:
    """Whether a run looks like a token, by its own and by what stands before it."""
    if _LOOKS.search(run) is not None:
        return True
    if not at or data[at - 1] not in _MARKS:
        return False
    before = data[max(at - 24, 0) : at]
    return (
        (before.endswith((b"'", b'"')) and len(run) == 40)
        or (before[-8:-7] == b"." and before.endswith(b".") and len(run) >= 27)
        or (before.endswith(b":") and len(run) >= 35)
        or before.endswith((b"SG.", b"AccountKey=", b"_authToken="))
    )
