"""Secrets: each rule's tokens are found wherever they stand, and never told whole."""

from __future__ import annotations

import random
import string

import pytest

from capsule.context.secrets import DETECTORS, holds_secrets, tokens_in

LOWER, UPPER, DIGITS = string.ascii_lowercase, string.ascii_uppercase, string.digits
#: Put together here, so that nothing in this repository is taken for a key.
KEY, PUTTY = " ".join(("PRIVATE", "KEY")), "-".join(("PuTTY", "User", "Key", "File"))
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
        "ArtifactoryDetector": [f'x = "AKC{w(40)}"', f"key:AP6{w(40)}"],
        "AWSKeyDetector": [
            *(f"id={kind}{w(16, UPPER + DIGITS)}" for kind in ("AKIA", "ASIA", "ABIA", "ACCA", "A3TX")),
            f"aws_secret_access_key = '{w(18)}/{w(10)}+{w(10)}'",
        ],
        "AzureStorageKeyDetector": [f"DefaultEndpoints;AccountKey={w(86)}=="],
        "BasicAuthDetector": [f"postgres://app:{w(12)}@db/x", f'url = "https://me:{w(9)}@host.org/"'],
        "DiscordBotTokenDetector": [f"token: M{w(23)}.{w(6)}.{w(27)}", f"'N{w(25)}.{w(6)}.{w(27)}'"],
        "GitHubTokenDetector": [f"{kind}_{w(36)}" for kind in ("ghp", "gho", "ghu", "ghs", "ghr")],
        "GitLabTokenDetector": [
            *(f"{kind}-{w(24)}" for kind in ("glpat", "gldt", "glft", "glsoat", "glrt", "glcbt")),
            f"GR1348941{w(20)}",
            f"glimt-{w(25)}",
            f"glptt-{w(40)}",
            f"glagent-{w(50)}",
            f"gloas-{w(64)}",
        ],
        "JwtTokenDetector": [f"Bearer {header}.{payload}.{w(43)}"],
        "MailchimpDetector": [f"{w(32, LOWER + DIGITS)}-us12"],
        "NpmDetector": [
            f"//registry.npmjs.org/:_authToken=npm_{w(36)}",
            f"//r.example/:_authToken={w(8, 'abcdef' + DIGITS)}-1234-1234-1234-{w(12, 'abcdef' + DIGITS)}",
        ],
        "OpenAIDetector": [f"sk-{w(20)}T3BlbkFJ{w(20)}", f"sk-proj-{w(20)}T3BlbkFJ{w(20)}"],
        "PrivateKeyDetector": [
            *(f"-----BEGIN {kind}{KEY}-----" for kind in ("", "RSA ", "EC ", "DSA ", "OPENSSH ")),
            f"-----BEGIN PGP {KEY} BLOCK-----",
            f"BEGIN SSH2 ENCRYPTED {KEY}",
            f"{PUTTY}-2: ssh-rsa",
        ],
        "PypiTokenDetector": [f"pypi-AgEIcHlwaS5vcmc{w(80)}", f"pypi-AgENdGVzdC5weXBpLm9yZw{w(80)}"],
        "SendGridDetector": [f"SG.{w(22)}.{w(43)}"],
        "SlackDetector": [
            *(f"xox{kind}-{w(12, DIGITS)}-{w(12, DIGITS)}-{w(24)}" for kind in "abposr"),
            f"https://hooks.slack.com/services/T{w(8)}/B{w(8)}/{w(24)}",
        ],
        "SquareOAuthDetector": [f"sq0csp-{w(43)}"],
        "StripeDetector": [f"sk_live_{w(24)}", f"rk_live_{w(24)}"],
        "TelegramBotTokenDetector": [f"{w(9, DIGITS)}:{w(35)}"],
        "TwilioKeyDetector": [f"AC{w(32, LOWER + DIGITS)}", f"SK{w(32, LOWER + DIGITS)}"],
    }


@pytest.mark.parametrize("name", DETECTORS)
def test_each_kind_of_token_is_found_wherever_it_stands(name: str, rng: random.Random) -> None:
    from importlib import import_module

    detector = getattr(import_module(f"detect_secrets.plugins.{DETECTORS[name]}"), name)()
    for _ in range(20):
        for token in samples(rng)[name]:
            assert list(detector.analyze_string(token)), token  # It is a token by the rule itself.
            for text in (
                token,
                f"a\nb\n{token}\nc",
                f"x = 1\r\n {token} \r\n",
                f"{'long ' * 5000}{token}",
                f"é{'日' * 9}\n{token}",
            ):
                found = [one for one in tokens_in("f", text.encode()) if one.kind == detector.secret_type]
                assert found, text[-300:]
                assert found[0].line == text[: text.index(token)].count("\n") + 1


@pytest.mark.parametrize("name", DETECTORS)
def test_no_token_is_told_whole(name: str, rng: random.Random) -> None:
    for token in samples(rng)[name]:
        for finding in tokens_in("f", token.encode()):
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
    assert there - left_out == set(DETECTORS.values())


def test_ordinary_text_has_no_findings(repository: object) -> None:
    text = (
        "def test_append_by_another_instance_is_refused_while_locked(): pass\n"
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\n"
        "https://example.org/a/very/long/path/without/any/secret?at=all\n"
        "mail me@example.org; git@github.com:owner/name.git\n"
        "550e8400-e29b-41d4-a716-446655440000\n"
    )
    assert tokens_in("f", text.encode()) == []


def test_a_file_full_of_tokens_tells_twenty(rng: random.Random) -> None:
    lines = [f"ghp_{drawn(rng, WORD, 36)}" for _ in range(500)]
    found = tokens_in("f", "\n".join(lines).encode())
    assert [one.line for one in found] == list(range(1, 21))


def test_a_very_long_line_of_what_nearly_matches_is_read_in_no_time() -> None:
    """Some rules take a time that grows with the square of a line's length; 2 MB of it would take days."""
    tokens_in("f", b"//a/:_authToken" * 100_000 + b"npm_" + b"x" * 500_000)
    tokens_in("f", b"://a:" * 400_000 + b"@")


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
