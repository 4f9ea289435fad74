"""Detect secrets: files with a name for keys, and secrets in the text of other files.

The detection is not complete: it knows the formats of keys of common services, and names like
`password` with a value. The formats are this project's own patterns, after those of gitleaks
(https://github.com/gitleaks/gitleaks, MIT). detect-secrets finds the rest. It reads a megabyte a
second, so it gets only lines with a sign: the name of a secret, or a part that every token of a
kind has. Rust's `regex`, which comes with pydantic, searches for signs at gigabytes a second, in
linear time.

What must stay true: no part of a detected secret is ever printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import translate
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detect_secrets.plugins.base import BasePlugin

#: Names of files that hold secrets, in lower case.
_FILE_NAMES = """
    .env .env.* *.env *.pem *.key *.p12 *.pfx *.jks *.keystore *.kdbx *.ppk id_rsa id_dsa id_ecdsa id_ed25519
    .netrc _netrc .npmrc .pypirc .pgpass .htpasswd .git-credentials credentials.json service-account*.json
    secrets.y*ml secrets.json secrets.toml *.tfstate *.tfvars
"""
_FILES = tuple(_FILE_NAMES.split())
#: Endings of files that only show which settings there are.
_HARMLESS = (".example", ".sample", ".template", ".dist", ".pub")
_DIRECTORIES = frozenset({".ssh", ".aws", ".gnupg", ".kube"})
_NAMES = frozenset(name for name in _FILES if "*" not in name)
_SUFFIXES = tuple(name[1:] for name in _FILES if name.startswith("*"))
_PREFIXES = tuple(name.partition("*")[0] for name in _FILES if "*" in name[1:])
_WILDCARDS = re.compile("|".join(translate(name) for name in _FILES if "*" in name[1:]))

#: The formats of secrets. A prefix that is unique is enough.
RULES = {
    "Age Key": r"AGE-SECRET-KEY-1[A-Z0-9]{58}",
    "Anthropic Key": r"sk-ant-[a-z0-9]{2,10}-[A-Za-z0-9_-]{20}",
    "Atlassian Token": r"ATATT3[A-Za-z0-9_=-]{100}",
    "AWS Access Key": r"(?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)[0-9A-Z]{16}",
    "AWS Secret Key": r"(?i:aws_?secret_?(?:access_?)?key)[ \t]*['\"]?[ \t]*(?::|=|=>)[ "
    r"\t]*['\"]?[A-Za-z0-9/+]{40}",
    "Azure Storage Key": r"AccountKey=[A-Za-z0-9+/]{80}",
    "DigitalOcean Token": r"do[opr]_v1_[a-f0-9]{64}",
    "Docker Token": r"dckr_pat_[A-Za-z0-9_-]{27}",
    "GitHub Token": r"gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{22}",
    "GitLab Token": r"gl[a-z]{2,5}-[A-Za-z0-9_-]{20}|GR1348941[A-Za-z0-9_-]{20}",
    "Google Key": r"AIza[A-Za-z0-9_-]{35}|GOCSPX-[A-Za-z0-9_-]{28}",
    "Grafana Token": r"gl(?:c|sa)_[A-Za-z0-9+/_]{32}",
    "Groq Key": r"gsk_[A-Za-z0-9]{52}",
    "Hashicorp Vault Token": r"hvs\.[A-Za-z0-9_-]{90}",
    "Hugging Face Token": r"hf_[A-Za-z]{34}",
    "JSON Web Token": r"eyJ[A-Za-z0-9_-]{10,4000}\.eyJ[A-Za-z0-9_-]{10}",
    "Linear Key": r"lin_api_[A-Za-z0-9]{40}",
    "New Relic Key": r"NRAK-[A-Z0-9]{27}",
    "npm Token": r"npm_[A-Za-z0-9]{36}",
    "OpenAI Key": r"sk-(?:proj|svcacct|admin)-[A-Za-z0-9_-]{40}|T3BlbkFJ[A-Za-z0-9]{20}",
    "Postman Key": r"PMAK-[a-f0-9]{24}-[a-f0-9]{34}",
    "Private Key": r"-----BEGIN[ A-Z0-9]{0,40} PRIVATE KEY|PuTTY-User-Key-File[-]",
    "PyPI Token": r"pypi-AgE[A-Za-z0-9_-]{50}",
    "Replicate Token": r"r8_[A-Za-z0-9]{37}",
    "SendGrid Key": r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",
    "Shopify Token": r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}",
    "Slack Token": r"xox[a-z]-[A-Za-z0-9-]{10}|xapp-[0-9]-[A-Z0-9]{5}|hooks\.slack\.com/services/T",
    "Stripe Key": r"[rs]k_(?:live|prod|test)_[A-Za-z0-9]{20}",
    "Supabase Token": r"sbp_[a-f0-9]{40}",
    "xAI Key": r"xai-[A-Za-z0-9]{70}",
}
#: A value assigned to a name in a file that is no program: without quotes, and with a digit.
_ASSIGNMENT = re.compile(
    r"^\s*(?:export\s+|set\s+)?[\w.-]*(?:passw(?:or)?d|pwd|secret|token|api[_-]?key|access[_-]?key)[\w.-]*\s*="
    r"\s*(?=\S*\d)[^\s'\"`$<>{}()\[\],;]{6,}\s*$",
    re.IGNORECASE,
)
#: Signs besides the formats above: the names of secrets, as in the keyword detector, and the
#: patterns of the other detectors.
SIGNS = (
    r"(?i:(?:key|token)[a-z0-9_-]{0,40}['\"`\])]{0,3}[ \t]*[:=(])",
    r"(?i:passw|pwd|secret|contrase|db_?pass|key_?pass)",
    r"://[^\s:/?#@]+:[^\s:/?#@]+@",
    r"AKC[a-zA-Z0-9]{10}|AP[0-9A-F][a-zA-Z0-9]{8}",
    r"[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27}",
    r"[0-9a-z]{32}-us[0-9]",
    r":_authToken=",
    r"sq0csp-",
    r"[0-9]{8}:[0-9A-Za-z_-]{35}",
    r"(?:AC|SK)[a-z0-9]{32}",
)
#: Detectors with mostly false positives in programs.
_UNUSED_DETECTORS = {"Base64HighEntropyString", "HexHighEntropyString", "IPPublicDetector"}
_KEYWORD = "Secret Keyword"

#: The replacement of a secret.
REDACTED = "[redacted]"
_KEY_BLOCK = re.compile(
    r"-----BEGIN[ A-Z0-9]{0,40} PRIVATE KEY.*?(?:-----END[ A-Z0-9]{0,40} PRIVATE KEY[ "
    r"A-Z]*-----|\Z)",
    re.DOTALL,
)

#: The number of formats in one search: with more, the engine can't search for their first letters.
_SEARCHED_TOGETHER = 5
#: A longer line is searched in overlapping pieces of this many characters: some rules take
#: quadratic time.
_MAX_LINE = 4_096
#: The largest number of findings for one file.
_MAX_FINDINGS = 20

HasSign = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class SecretFinding:
    """A secret in the text of a file: its kind, and its line (from 1)."""

    path: str
    line: int
    kind: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}"


def holds_secrets(path: str) -> bool:
    """Return whether a file (relative, POSIX) holds secrets according to its name."""
    directory, _, name = path.lower().rpartition("/")
    if "." in directory and not _DIRECTORIES.isdisjoint(directory.split("/")):
        return True
    if name.endswith(_HARMLESS):
        return False
    if name in _NAMES or name.endswith(_SUFFIXES):
        return True
    return name.startswith(_PREFIXES) and bool(_WILDCARDS.match(name))


def may_hold_secrets(text: str) -> bool:
    """Return whether a text has a sign of a secret. Without a sign it has no secret.

    Cost: 200 ms for 100 MB.
    """
    return any(has_sign(text) for has_sign in _signs())


def secrets_in(path: str, text: str) -> list[SecretFinding]:
    """Return the secrets in a file's text, by line, 20 at most."""
    signs = [has_sign for has_sign in _signs() if has_sign(text)]
    findings: dict[SecretFinding, None] = {}
    for number, line in enumerate(text.split("\n") if signs else (), 1):
        for piece in _pieces(line):
            if any(has_sign(piece) for has_sign in signs):
                findings |= dict.fromkeys(
                    SecretFinding(path, number, kind) for kind in _kinds(path, piece)
                )
        if len(findings) >= _MAX_FINDINGS:
            break
    return list(findings)[:_MAX_FINDINGS]


def redacted(text: str) -> str:
    """Replace each secret that `secrets_in` would find by `[redacted]`, at the same cost."""
    signs = [has_sign for has_sign in _signs() if has_sign(text)]
    if not signs:
        return text
    lines = []
    for line in _KEY_BLOCK.sub(REDACTED, text).split("\n"):
        if any(has_sign(line) for has_sign in signs):
            lines.append(_redacted_line(line))
        else:
            lines.append(line)
    return "\n".join(lines)


def _redacted_line(line: str) -> str:
    for rule in _rules().values():
        line = re.sub(rf"(?:{rule.pattern})[^\s'\"`,;<>(){{}}\[\]|\\]*", REDACTED, line)
    for piece in _pieces(line):
        for detector in _detectors():
            for secret in detector.analyze_line(filename="", line=piece):
                if secret.secret_value:
                    line = line.replace(secret.secret_value, REDACTED)
    return _ASSIGNMENT.sub(lambda match: f"{match[0].partition('=')[0]}={REDACTED}", line)


def _kinds(path: str, line: str) -> set[str]:
    """Return the kinds of the secrets in a line. The detectors get lines that match no format."""
    known_formats = {kind for kind, rule in _rules().items() if rule.search(line)}
    if known_formats:
        return known_formats
    from detect_secrets.filters import heuristic
    from detect_secrets.util.filetype import FileType, determine_file_type

    false_positives = (
        heuristic.is_templated_secret,
        heuristic.is_prefixed_with_dollar_sign,
        heuristic.is_not_alphanumeric_string,
        heuristic.is_sequential_string,
    )
    kinds = set()
    for detector in _detectors():
        for secret in detector.analyze_line(filename=path, line=line):
            value = secret.secret_value or ""
            if secret.type == _KEYWORD and (
                heuristic.is_indirect_reference(line)
                or any(matches(value) for matches in false_positives)
            ):
                continue
            kinds.add(secret.type)
    if not kinds and determine_file_type(path) is FileType.OTHER and _ASSIGNMENT.search(line):
        kinds.add(_KEYWORD)
    return kinds


@cache
def _rules() -> dict[str, re.Pattern[str]]:
    return {kind: re.compile(rule) for kind, rule in RULES.items()}


@cache
def _detectors() -> tuple[BasePlugin, ...]:
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

    classes: Any = get_mapping_from_secret_type_to_class().values()
    return tuple(detector() for detector in classes if detector.__name__ not in _UNUSED_DETECTORS)


@cache
def _signs() -> tuple[HasSign, ...]:
    """Return a function for each sign that returns whether a text has it."""
    from pydantic_core import SchemaValidator, core_schema

    rules = list(RULES.values())
    batches = (
        rules[start : start + _SEARCHED_TOGETHER]
        for start in range(0, len(rules), _SEARCHED_TOGETHER)
    )
    return tuple(
        SchemaValidator(
            core_schema.str_schema(pattern=sign, regex_engine="rust-regex")
        ).isinstance_python
        for sign in (*("|".join(batch) for batch in batches), *SIGNS)
    )


def _pieces(line: str) -> Iterator[str]:
    if len(line) <= _MAX_LINE:
        yield line
        return
    for start in range(0, len(line) - _MAX_LINE // 2, _MAX_LINE // 2):
        yield line[start : start + _MAX_LINE]
