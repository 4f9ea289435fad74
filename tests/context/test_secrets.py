"""Secrets: each rule's tokens are found wherever they stand, and never told whole."""

from __future__ import annotations

import random
import string
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capsule.context.secrets import DETECTORS, SIGNS, holds_secrets, may_hold_tokens, tokens_in

LOWER, UPPER, DIGITS = string.ascii_lowercase, string.ascii_uppercase, string.digits
#: Put together here, so that nothing in this repository is taken for a key.
KEY, PUTTY, AUTH = " ".join(("PRIVATE", "KEY")), "-".join(("PuTTY", "User", "Key", "File")), "_auth" + "Token"
WORD = LOWER + UPPER + DIGITS


def drawn(rng: random.Random, characters: str, length: int) -> str:
    """Random characters, some of each kind as in every random token."""
    return "".join(rng.choices(characters, k=length - 2)) + "A7"[: 2 if "A" in characters else 0].ljust(2, "7")


def b64(rng: random.Random, text: str) -> str:
    import base64

    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def samples(rng: random.Random) -> dict[str, list[str]]:
    """A token of each kind that each rule knows, made here and now, so that none stands in this repository."""
    w = lambda length, characters=WORD: drawn(rng, characters, length)  # noqa: E731
    header, payload = b64(rng, '{"alg":"HS256"}'), b64(rng, '{"sub":"1234567890"}')
    return {
        "artifactory": [f'x = "AKC{w(40)}"', f"key:AP6{w(40)}"],
        "aws": [
            *(f"id={kind}{w(16, UPPER + DIGITS)}" for kind in ("AKIA", "ASIA", "ABIA", "ACCA", "A3TX")),
            f"aws_secret_access_key = '{w(18)}/{w(10)}+{w(10)}'",
        ],
        "azure_storage_key": [f"DefaultEndpoints;AccountKey={w(86)}=="],
        "basic_auth": [f"postgres://app:{w(12)}@db/x", f'url = "https://me:{w(9)}@host.org/"'],
        "discord": [f"token: M{w(23)}.{w(6)}.{w(27)}", f"'N{w(25)}.{w(6)}.{w(27)}'"],
        "github_token": [f"{kind}_{w(36)}" for kind in ("ghp", "gho", "ghu", "ghs", "ghr")],
        "gitlab_token": [
            *(f"{kind}-{w(24)}" for kind in ("glpat", "gldt", "glft", "glsoat", "glrt", "glcbt")),
            f"GR1348941{w(20)}",
            f"glimt-{w(25)}",
            f"glptt-{w(40)}",
            f"glagent-{w(50)}",
            f"gloas-{w(64)}",
        ],
        "jwt": [f"Bearer {header}.{payload}.{w(43)}"],
        "mailchimp": [f"{w(32, LOWER + DIGITS)}-us12"],
        "npm": [
            f"//registry.npmjs.org/:{AUTH}=npm_{w(36)}",
            f"//r.example/:{AUTH}={w(8, 'abcdef' + DIGITS)}-1234-1234-1234-{w(12, 'abcdef' + DIGITS)}",
        ],
        "openai": [f"sk-{w(20)}T3BlbkFJ{w(20)}", f"sk-proj-{w(20)}T3BlbkFJ{w(20)}"],
        "private_key": [
            *(f"-----BEGIN {kind}{KEY}-----" for kind in ("", "RSA ", "EC ", "DSA ", "OPENSSH ")),
            f"-----BEGIN PGP {KEY} BLOCK-----",
            f"BEGIN SSH2 ENCRYPTED {KEY}",
            f"{PUTTY}-2: ssh-rsa",
        ],
        "pypi_token": [f"pypi-AgEIcHlwaS5vcmc{w(80)}", f"pypi-AgENdGVzdC5weXBpLm9yZw{w(80)}"],
        "sendgrid": [f"SG.{w(22)}.{w(43)}"],
        "slack": [
            *(f"xox{kind}-{w(12, DIGITS)}-{w(12, DIGITS)}-{w(24)}" for kind in "abposr"),
            f"https://hooks.slack.com/services/T{w(8)}/B{w(8)}/{w(24)}",
        ],
        "square_oauth": [f"sq0csp-{w(43)}"],
        "stripe": [f"sk_live_{w(24)}", f"rk_live_{w(24)}"],
        "telegram_token": [f"{w(9, DIGITS)}:{w(35)}"],
        "twilio": [f"AC{w(32, LOWER + DIGITS)}", f"SK{w(32, LOWER + DIGITS)}"],
    }


@cache
def detector_of(module: str) -> Any:
    return getattr(import_module(f"detect_secrets.plugins.{module}"), DETECTORS[module])()


def unfiltered(text: str) -> set[tuple[int, str, str]]:
    """What the rules find in each line, when nothing stands between them and it."""
    return {
        (number, detector_of(module).secret_type, secret[: min(4, len(secret) // 4)])
        for number, line in enumerate(text.split("\n"), 1)
        for module in DETECTORS
        for secret in detector_of(module).analyze_string(line)
    }


def filtered(text: str) -> set[tuple[int, str, str]]:
    return {(one.line, one.kind, one.begins) for one in tokens_in("f", text)}


@pytest.mark.parametrize("module", DETECTORS)
def test_each_kind_of_token_is_found_wherever_it_stands(module: str, rng: random.Random) -> None:
    detector = detector_of(module)
    for _ in range(20):
        for token in samples(rng)[module]:
            assert list(detector.analyze_string(token)), token  # It is a token by the rule itself.
            for text in (
                token,
                f"a\nb\n{token}\nc",
                f"x = 1\r\n {token} \r\n",
                f"{'long ' * 5000}{token}",
                f"{'long ' * 811}{token} {'long ' * 5000}",
                f"é{'日' * 9}\n{token}",
            ):
                assert may_hold_tokens(text) and may_hold_tokens(f"a\n{text}\nb")
                found = [one for one in tokens_in("f", text) if one.kind == detector.secret_type]
                assert found, text[-300:]
                assert found[0].line == text[: text.index(token)].count("\n") + 1


#: What tokens are made of, and what looks alike: other scripts' digits, letters that count as `s` and `k` where case
#: doesn't, and spaces that only Python takes for some.
_LITERALS = [
    *(
        "AKC",
        "AP",
        "AKIA",
        "ASIA",
        "A3T",
        "ABIA",
        "aws",
        "AWS_",
        "key",
        "pass",
        "token",
        "AccountKey=",
        "://",
        "@",
        ":",
    ),
    *("ghp_", "gho_", "glpat-", "glrt-", "GR1348941", "glcbt-", "eyJ", "-us1", "-us", "//", "/:", "_auth" + "Token="),
    *(
        "npm_",
        "sk-",
        "T3BlbkFJ",
        "BEGIN ",
        KEY,
        " BLOCK",
        f"{PUTTY}-2",
        "pypi-AgEIcHlwaS5vcmc",
        "SG.",
        "xoxb-",
        "XOXP-",
    ),
    *("https://hooks.slack.com/services/T", "hook\u017f.\u017flac\u212a.com/services/T", "/B", "sq0csp-", "sk_live_"),
    *(
        "rk_live_",
        "AC",
        "SK",
        "M",
        "N",
        ".",
        "-",
        "_",
        "=",
        "'",
        '"',
        " ",
        "\x1c",
        "\u3000",
        "\t",
        "\r",
        "\n",
        "/",
        "\\",
    ),
]
_RUNS = st.tuples(
    st.sampled_from(
        [LOWER, UPPER, DIGITS, WORD, LOWER + DIGITS, "abcdef" + DIGITS, WORD + "_-", "\u0663", "7\u096d", "é"]
    ),
    st.sampled_from([1, 2, 3, 4, 6, 8, 9, 10, 14, 16, 20, 22, 23, 24, 25, 27, 32, 35, 36, 40, 43, 64, 70, 86]),
    st.randoms(use_true_random=False),
).map(lambda drawn: "".join(drawn[2].choices(drawn[0], k=drawn[1])))
_TOKENS = st.tuples(
    st.sampled_from(sorted(DETECTORS)), st.integers(0, 9), st.integers(0, 2**32), st.integers(-3, 300)
).map(lambda drawn: mutilated(*drawn))
ADVERSARIAL = st.lists(st.one_of(st.sampled_from(_LITERALS), _RUNS, _TOKENS), max_size=12).map("".join)


def mutilated(module: str, which: int, seed: int, at: int) -> str:
    """A token, whole or with one character changed for another."""
    rng = random.Random(seed)
    kinds = samples(rng)[module]
    token = kinds[which % len(kinds)]
    if not 0 <= at < len(token):
        return token
    return token[:at] + rng.choice(["", "x", "7", "\u0667", "_", "-", " ", "K", "\u212a", "é"]) + token[at + 1 :]


@given(ADVERSARIAL)
@example("AP\u0663" + "a1" * 6)
@example("N" + "7\u096d" * 12 + "." + "a" * 6 + "." + "\u0663" * 27)
@example("\u0663" * 9 + ":" + "a" * 35)
@example("//r/:_auth" + "Token=\x1c\u3000npm_x")
@example("x" + "oxb-\u0663-a")
@example("A" + "WS_PA\u017f\u017fWORD = '" + "\u212a" * 40 + "'")
def test_what_the_rules_find_in_a_line_is_found_and_nothing_else(text: str) -> None:
    assert filtered(text) == unfiltered(text)
    assert may_hold_tokens(text) or not unfiltered(text)


@given(ADVERSARIAL, st.integers(0, 9_000))
def test_in_a_very_long_line_it_is_found_too(text: str, before: int) -> None:
    line = text.replace("\n", " ")
    kinds = {kind for _, kind, _ in unfiltered(f" {line} ")}
    assert kinds <= {kind for _, kind, _ in filtered(f"{'. ' * (before // 2)} {line} {'. ' * 4_500}")}


@pytest.mark.parametrize("module", SIGNS)
def test_no_token_is_told_whole(module: str, rng: random.Random) -> None:
    for token in samples(rng)[module]:
        for finding in tokens_in("f", token):
            assert len(finding.begins) <= 4
            assert len(str(finding)) < len("f:1: ") + len(finding.kind) + 12


def test_every_rule_that_knows_a_kind_of_token_is_asked() -> None:
    """A rule that a later detect-secrets brings is to be taken up, or left out on purpose."""
    import pkgutil

    import detect_secrets.plugins

    # Words and entropy find mostly what is none; of the others the rule finds any word beside the product's name.
    left_out = {"base", "high_entropy_strings", "keyword", "ip_public"}
    left_out |= {"cloudant", "ibm_cloud_iam", "ibm_cos_hmac", "softlayer"}
    there = {module.name for module in pkgutil.iter_modules(detect_secrets.plugins.__path__)}
    assert there - left_out == set(DETECTORS) == set(SIGNS)


def test_this_project_can_be_captured_as_it_is(repository: Path) -> None:
    """Its own rules and examples are written so that they are none of what they look for."""
    texts = [path for part in ("capsule", "cli", "docs") for path in (repository / part).rglob("*.*")]
    found = [tokens_in(str(path), path.read_text("utf-8")) for path in texts if path.suffix in (".py", ".md", ".svg")]
    assert len(found) > 100 and not any(found)


def test_ordinary_text_has_no_findings(repository: object) -> None:
    text = (
        "def test_append_by_another_instance_is_refused_while_locked(): pass\n"
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\n"
        "https://example.org/a/very/long/path/without/any/secret?at=all\n"
        "mail me@example.org; git@github.com:owner/name.git\n"
        "550e8400-e29b-41d4-a716-446655440000\n"
    )
    assert tokens_in("f", text) == []
    assert not may_hold_tokens(text)


def test_a_file_full_of_tokens_tells_twenty(rng: random.Random) -> None:
    lines = [f"ghp_{drawn(rng, WORD, 36)}" for _ in range(500)]
    found = tokens_in("f", "\n".join(lines))
    assert [one.line for one in found] == list(range(1, 21))


def test_a_very_long_line_of_what_nearly_matches_is_read_in_no_time() -> None:
    """Some rules take a time that grows with the square of a line's length; 2 MB of it would take days."""
    tokens_in("f", f"//a/:{AUTH}" * 100_000 + "npm_" + "x" * 500_000)
    tokens_in("f", f"//a/:{AUTH}=npm_x" * 100_000)
    tokens_in("f", "://a:" * 400_000 + "@")
    tokens_in("f", "eyJ" * 500_000 + ".")


@pytest.mark.parametrize(
    "path",
    [".env", "app/.env.production", "prod.env", "keys/server.pem", "id_ed25519", ".ssh/config", "x/.aws/credentials",
     "a/.npmrc", "Secrets.YAML", "infra/prod.tfvars", "store.JKS"],
)  # fmt: skip
def test_files_that_hold_secrets_are_known_by_their_names(path: str) -> None:
    assert holds_secrets(path)


@pytest.mark.parametrize(
    "path", [".env.example", "id_rsa.pub", "env.py", "keys.py", "a.env.sample", "secrets.py", "key"]
)
def test_others_are_not_taken_for_them(path: str) -> None:
    assert not holds_secrets(path)
