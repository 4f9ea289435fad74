"""What must not get into a context unasked: files that hold keys, and tokens in the text of others.

The rules for tokens are those of detect-secrets, one detector for each kind of token; its detectors of high entropy
and of words like "password" are not asked, as in source code nearly all they find is none. What must stay true: what
these rules find in a line is found, as nothing stood between them and the line (a test holds the two together); and a
token that is found is never shown whole.

All rules together read some 10 MB a second. So a text is asked first for what every token of a kind has in it, its
sign: all signs together are looked for at 2 GB a second, and hardly a text has one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import translate
from functools import cache
from typing import Any

from capsule.context.patterns import finder

__all__ = ["Finding", "holds_secrets", "may_hold_tokens", "tokens_in"]

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
_HARMLESS = (".example", ".sample", ".template", ".dist", ".pub")
_DIRECTORIES = frozenset({".ssh", ".aws", ".gnupg", ".kube"})
_NAMES = frozenset(name for name in _FILES if "*" not in name)
_ENDINGS = tuple(name[1:] for name in _FILES if name.startswith("*"))
_BEGINNINGS = tuple(name.partition("*")[0] for name in _FILES if "*" in name[1:])
_OTHERS = re.compile("|".join(translate(name) for name in _FILES if "*" in name[1:]))

#: The detectors, by the modules they stand in.
DETECTORS = {
    "artifactory": "ArtifactoryDetector",
    "aws": "AWSKeyDetector",
    "azure_storage_key": "AzureStorageKeyDetector",
    "basic_auth": "BasicAuthDetector",
    "discord": "DiscordBotTokenDetector",
    "github_token": "GitHubTokenDetector",
    "gitlab_token": "GitLabTokenDetector",
    "jwt": "JwtTokenDetector",
    "mailchimp": "MailchimpDetector",
    "npm": "NpmDetector",
    "openai": "OpenAIDetector",
    "private_key": "PrivateKeyDetector",
    "pypi_token": "PypiTokenDetector",
    "sendgrid": "SendGridDetector",
    "slack": "SlackDetector",
    "square_oauth": "SquareOAuthDetector",
    "stripe": "StripeDetector",
    "telegram_token": "TelegramBotTokenDetector",
    "twilio": "TwilioKeyDetector",
}

#: What is beyond ASCII counts as a digit here: a rule's `\d` matches those of every script.
_BEYOND = r"\x{80}-\x{10FFFF}"
_DIGIT = rf"[0-9{_BEYOND}]"
_IN_DISCORD = rf"[a-zA-Z0-9{_BEYOND}_-]"
_IN_PASSWORD = r"[^:/?#\[\]@!$&'()*+,;=\s]"
#: What every token of a kind has in it, by the module of its detector: the rules of detect-secrets, without what they
#: say of the text around a token, and cut short where more would tell no more.
SIGNS = {
    "artifactory": rf"AKC[a-zA-Z0-9]{{10}}|AP[0-9A-F{_BEYOND}][a-zA-Z0-9]{{8}}",
    "aws": r"(?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)[0-9A-Z]{16}"
    r"|(?i:aws.{0,20}(?:key|pwd|pw|pass|token).{0,24}['\"][0-9a-z/+]{40}['\"])",
    "azure_storage_key": r"AccountKey=[a-zA-Z0-9+/=]{88}",
    "basic_auth": rf"://{_IN_PASSWORD}+:{_IN_PASSWORD}+@",
    "discord": rf"[MNO]{_IN_DISCORD}{{23,25}}\.{_IN_DISCORD}{{6}}\.{_IN_DISCORD}{{27}}",
    "github_token": r"(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9_]{36}",
    "gitlab_token": r"(?:gl(?:pat|dt|ft|soat|rt|cbt|imt|ptt|agent|oas)-|GR1348941)[A-Za-z0-9_-]{20}",
    "jwt": r"eyJ[A-Za-z0-9_=-]+\.[A-Za-z0-9_=-]",
    "mailchimp": r"[0-9a-z]{32}-us[0-9]",
    "npm": r"/:_authToken=[\s\x1c-\x1f]*(?:npm_.|[A-Fa-f0-9-]{36})",
    "openai": r"T3BlbkFJ[A-Za-z0-9]{20}",
    "private_key": r"PRIVATE KEY|PuTTY-User-Key-File-[2]",
    "pypi_token": r"pypi-AgE[A-Za-z0-9_-]{70}",
    "sendgrid": r"SG\.[a-zA-Z0-9_-]{22}\.[a-zA-Z0-9_-]{43}",
    "slack": rf"(?i:xox[abposr]-{_DIGIT}|\.com/services/T)",
    "square_oauth": r"sq0csp-[0-9A-Za-z\\_-]{43}",
    "stripe": r"k_live_[0-9a-zA-Z]{24}",
    "telegram_token": rf"{_DIGIT}{{8}}:[0-9A-Za-z_-]{{35}}",
    "twilio": r"(?:AC|SK)[a-z0-9]{32}",
}
#: Signs that are looked for at once: those that begin with letters of their own, as the engine looks for some dozen
#: beginnings in one go. Each of the others is fastest alone.
_TOGETHER = (
    (
        *("azure_storage_key", "jwt", "npm", "openai", "private_key"),
        *("pypi_token", "sendgrid", "square_oauth", "stripe"),
    ),
    ("artifactory", "gitlab_token", "twilio"),
    ("basic_auth", "github_token"),
)

#: A longer line is given to the rules in pieces of so many characters, each half of which is in another piece too.
#: Some rules take a time that grows with the square of a line's length.
_LINE = 4_096
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
    directory, _, name = path.lower().rpartition("/")
    if "." in directory and not _DIRECTORIES.isdisjoint(directory.split("/")):
        return True
    looks = name in _NAMES or name.endswith(_ENDINGS) or (name.startswith(_BEGINNINGS) and _OTHERS.match(name))
    return bool(looks) and not name.endswith(_HARMLESS)


def may_hold_tokens(text: str) -> bool:
    """Whether a text has the sign of a token in it; one that has none holds none. Costs 50 ms for 100 MB."""
    return any(has_sign(text) for has_sign in _any_sign(text.isascii()))


def tokens_in(path: str, text: str) -> list[Finding]:
    """The tokens in a file's text, in the order of its lines; 20 at most."""
    if not may_hold_tokens(text):
        return []
    has_sign = _signs(text.isascii())
    modules = [module for module in SIGNS if has_sign[module](text)]
    found: dict[tuple[int, str, str], Finding] = {}
    for number, line in enumerate(text.split("\n"), 1):
        for piece in _pieces(line):
            for module in modules:
                if has_sign[module](piece):
                    detector = _detector(module)
                    for secret in detector.analyze_string(piece):
                        finding = Finding(path, number, detector.secret_type, secret[: min(4, len(secret) // 4)])
                        found.setdefault((number, detector.secret_type, secret), finding)
        if len(found) >= _MOST:
            break
    return sorted(found.values(), key=lambda finding: (finding.line, finding.kind))[:_MOST]


@cache
def _detector(module: str) -> Any:
    from importlib import import_module

    return getattr(import_module(f"detect_secrets.plugins.{module}"), DETECTORS[module])()


@cache
def _signs(is_ascii: bool) -> dict[str, Callable[[str], bool]]:
    return {module: finder(_sign(module, is_ascii)) for module in SIGNS}


@cache
def _any_sign(is_ascii: bool) -> tuple[Callable[[str], bool], ...]:
    alone = [(module,) for module in SIGNS if not any(module in modules for modules in _TOGETHER)]
    return tuple(finder("|".join(_sign(module, is_ascii) for module in modules)) for modules in (*_TOGETHER, *alone))


def _sign(module: str, is_ascii: bool) -> str:
    """A sign, and without what is beyond ASCII in a text that has none of it: that is found many times faster."""
    return SIGNS[module].replace(_BEYOND, "") if is_ascii else SIGNS[module]


def _pieces(line: str) -> Iterator[str]:
    if len(line) <= _LINE:
        yield line
        return
    for at in range(0, len(line) - _LINE // 2, _LINE // 2):
        yield line[at : at + _LINE]
