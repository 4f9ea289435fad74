"""Secrets: known shapes and names are found anywhere in a text, and no part of a secret
is shown.
"""

from __future__ import annotations

import random
import string
from pathlib import Path

from capsule.context.secrets import RULES, holds_secrets, may_hold_secrets, secrets_in

LOWER, UPPER, DIGITS, HEX = (
    string.ascii_lowercase,
    string.ascii_uppercase,
    string.digits,
    "abcdef" + string.digits,
)
#: Put together here, so that this repository has no text that looks like a key.
KEY, AUTH, SECRET = " ".join(("PRIVATE", "KEY")), "_auth" + "Token", "sec" + "ret"
WORD = LOWER + UPPER + DIGITS


def samples(rng: random.Random) -> dict[str, list[str]]:
    """Secrets of each kind, made at random, so that this repository has none."""

    def w(length: int, characters: str = WORD) -> str:
        return "".join(rng.choices(characters, k=length - 2)) + (
            "A7" if "A" in characters else "77"
        )

    return {
        "Age Key": [f"AGE-SECRET-KEY-1{w(58, UPPER + DIGITS)}"],
        "Anthropic Key": [f"sk-ant-api03-{w(93)}AA", f"x = 'sk-ant-admin01-{w(93)}AA'"],
        "Atlassian Token": [f"ATATT3{w(186)}"],
        "AWS Access Key": [
            f"id={kind}{w(16, UPPER + DIGITS)}" for kind in ("AKIA", "ASIA", "ABIA", "ACCA", "A3TX")
        ],
        "AWS Secret Key": [
            f"AWS_SECRET_ACCESS_KEY={w(40)}",
            f"export AWS_SECRET_ACCESS_KEY={w(18)}/{w(10)}+{w(10)}",
            f'"aws_secret_access_key": "{w(40)}"',
        ],
        "Azure Storage Key": [f"DefaultEndpoints;AccountKey={w(86)}=="],
        "DigitalOcean Token": [f"dop_v1_{w(64, HEX)}"],
        "Docker Token": [f"dckr_pat_{w(27)}"],
        "GitHub Token": [f"{kind}_{w(36)}" for kind in ("ghp", "gho", "ghu", "ghs", "ghr")]
        + [f"github_pat_{w(22)}_{w(59)}"],
        "GitLab Token": [f"glpat-{w(20)}", f"glrt-{w(20)}", f"GR1348941{w(20)}"],
        "Google Key": [f"AIza{w(35)}", f"GOCSPX-{w(28)}"],
        "Grafana Token": [f"glsa_{w(32)}_{w(8, HEX)}"],
        "Groq Key": [f"gsk_{w(52)}"],
        "Hashicorp Vault Token": [f"hvs.{w(95)}"],
        "Hugging Face Token": [f"hf_{''.join(rng.choices(LOWER + UPPER, k=34))}"],
        "JSON Web Token": [f"Bearer eyJ{w(30)}.eyJ{w(30)}.{w(43)}"],
        "Linear Key": [f"lin_api_{w(40)}"],
        "New Relic Key": [f"NRAK-{w(27, UPPER + DIGITS)}"],
        "npm Token": [f"npm_{w(36)}", f"//registry.npmjs.org/:{AUTH}=npm_{w(36)}"],
        "OpenAI Key": [f"sk-{w(20)}T3BlbkFJ{w(20)}", f"sk-proj-{w(100)}"],
        "Postman Key": [f"PMAK-{w(24, HEX)}-{w(34, HEX)}"],
        "Private Key": [
            f"-----BEGIN {kind}{KEY}-----" for kind in ("", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED ")
        ],
        "PyPI Token": [f"pypi-AgEIcHlwaS5vcmc{w(80)}"],
        "Replicate Token": [f"r8_{w(37)}"],
        "SendGrid Key": [f"SG.{w(22)}.{w(43)}"],
        "Shopify Token": [f"shpat_{w(32, HEX)}"],
        "Slack Token": [
            f"xoxb-{w(12, DIGITS)}-{w(24)}",
            f"https://hooks.slack.com/services/T{w(8)}/B{w(8)}/{w(24)}",
        ],
        "Stripe Key": [f"sk_live_{w(24)}", f"rk_test_{w(24)}"],
        "Supabase Token": [f"sbp_{w(40, HEX)}"],
        "xAI Key": [f"xai-{w(80)}"],
        # From detect-secrets.
        "Artifactory Credentials": [f'x = "AKC{w(40)}"'],
        "Basic Auth Credentials": [f"postgres://app:{w(12)}@db/x"],
        "Discord Bot Token": [f"'N{w(25)}.{w(6)}.{w(27)}'"],
        "Mailchimp Access Key": [f"{w(32, LOWER + DIGITS)}-us12"],
        "Square OAuth Secret": [f"sq0csp-{w(43)}"],
        "Telegram Bot Token": [f"{w(9, DIGITS)}:{w(35)}"],
        "Twilio API Key": [f"SK{w(32, LOWER + DIGITS)}"],
    }


def test_each_kind_of_secret_is_found_anywhere_and_not_shown(rng: random.Random) -> None:
    kinds = samples(rng)
    assert set(RULES) <= set(kinds)
    for kind, secrets in kinds.items():
        for secret in secrets:
            for text in (secret, f"a\nb\n{secret}\nc", f"x = 1\r\n {secret} \r\n", f"{'日' * 9}\n{secret}",
                         f"{'long ' * 811}{secret} {'long ' * 5000}"):  # fmt: skip
                assert may_hold_secrets(text), secret
                found = {one.kind: one for one in secrets_in("f", text)}
                assert kind in found, (secret, found)
                assert found[kind].line == text[: text.index(secret)].count("\n") + 1
                assert str(found[kind]) == f"f:{found[kind].line}: {kind}"


def test_a_literal_value_that_the_name_of_a_secret_gets_is_found_and_no_other() -> None:
    for path, line, is_found in [
        ("app.py", f"{SECRET} = 'correct horse battery'", True),
        ("app.py", "DB_PASS" + 'WORD = "hunter2"', True),
        ("app.js", "const api" + "Key = 'a1b2c3d4e5f6'", True),
        ("config.yaml", "pass" + "word: hunter2", True),
        ("config.ini", "pass" + "word = hunter2", True),
        ("setup.sh", "export API_" + "TOKEN=a1b2c3d4", True),
        ("notes.txt", "pass" + "word = hunter2", True),
        ("app.py", "pass" + "word = getpass.getpass()", False),
        ("app.py", "def check(pass" + "word: str, token: str) -> bool: ...", False),
        ("config.yaml", "pass" + "word: ${DB_PASSWORD}", False),
        ("config.yaml", "pass" + "word: {{ vault.db }}", False),
        ("setup.sh", "TOKEN=$(cat /run/token1)", False),
        ("lib.rs", "let token = next_token2;", False),
        ("README.md", "Give the pass" + "word of the user and press Enter.", False),
    ]:
        assert [one.kind for one in secrets_in(path, f"a\n{line}\n")] == [
            "Secret Keyword"
        ] * is_found


def test_this_project_has_no_findings(repository: Path) -> None:
    """Its rules and examples are written so that they do not match themselves."""
    texts = [
        path for part in ("capsule", "cli", "docs") for path in (repository / part).rglob("*.*")
    ]
    found = [
        secrets_in(str(path), path.read_text("utf-8"))
        for path in texts
        if path.suffix in (".py", ".md", ".svg")
    ]
    assert len(found) > 100 and not any(found), [one for one in found if one]


def test_ordinary_text_has_no_findings() -> None:
    text = (
        "def test_append_by_another_instance_is_refused_while_locked(): pass\n"
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\n"
        "https://example.org/a/very/long/path/without/any/thing?at=all\n"
        "mail me@example.org; git@github.com:owner/name.git\n"
        "550e8400-e29b-41d4-a716-446655440000\n"
    )
    assert secrets_in("f", text) == [] and not may_hold_secrets(text)


def test_the_first_twenty_tokens_of_a_file_are_reported(rng: random.Random) -> None:
    found = secrets_in("f", "\n".join(samples(rng)["GitHub Token"] * 100))
    assert [one.line for one in found] == list(range(1, 21))


def test_a_very_long_line_of_near_matches_is_read_fast() -> None:
    """Some rules take time quadratic in the length of a line; a line of 2 MB would take days."""
    secrets_in("f", f"//a/:{AUTH}" * 100_000 + "npm_" + "x" * 500_000)
    secrets_in("f", "://a:" * 400_000 + "@")
    secrets_in("f", "eyJ" * 500_000 + ".")


def test_files_of_secrets_are_known_by_their_names() -> None:
    secret = (
        ".env app/.env.production prod.env keys/server.pem id_ed25519 .ssh/config "
        "x/.aws/credentials a/.npmrc"
    )
    secret += " Secrets.YAML infra/prod.tfvars store.JKS"
    similar = ".env.example id_rsa.pub env.py keys.py a.env.sample secrets.py key"
    assert [path for path in secret.split() if not holds_secrets(path)] == []
    assert [path for path in similar.split() if holds_secrets(path)] == []
