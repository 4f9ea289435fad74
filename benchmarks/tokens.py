"""How far the estimate of tokens is from what tokenizers say, on the files of this repository:
docs/context.md's table.

    python -m benchmarks.tokens [--ranks o200k_base.json] [--tokenizer tokenizer.json] [--texts
    DIRECTORY]

`o200k_base` needs the package tiktoken and its data: in tiktoken's cache, or (`--ranks`) the file
of that name out of the npm package js-tiktoken. `--tokenizer` is a file as Hugging Face's
tokenizers have it, and needs the package tokenizers; Anthropic's stands in the package anthropic up
to 0.38. With `--texts` the same for the Markdown files of a directory by the script they are
written in, as far as a line is mostly of that script. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from capsule.format.text.tokens import estimate

__all__ = ["main"]

_ROOT = Path(__file__).parents[1]
_KINDS = {
    "source": ("capsule", "cli"),
    "tests": ("tests",),
    "benchmarks": ("benchmarks",),
    "documentation": ("docs", "README.md", "CHANGELOG.md"),
    "schemas": ("schemas",),
}
_URL = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"

Count = Callable[[str], int]


def _o200k(ranks: Path | None) -> Count | str:
    """What counts tokens of `o200k_base`; in words what is missing for it."""
    try:
        import tiktoken
    except ImportError:
        return "tiktoken is not installed: pip install tiktoken"
    if ranks is None:
        cache = os.environ.get("TIKTOKEN_CACHE_DIR") or os.path.join(
            tempfile.gettempdir(), "data-gym-cache"
        )
        if not os.path.exists(os.path.join(cache, hashlib.sha1(_URL.encode()).hexdigest())):
            return (
                "tiktoken's data is not there: give --ranks FILE, or let tiktoken fetch "
                "o200k_base once"
            )
        encoding = tiktoken.get_encoding("o200k_base")
    else:
        told: dict[str, Any] = json.loads(ranks.read_bytes())
        merges: dict[bytes, int] = {}
        for line in told["bpe_ranks"].splitlines():
            _, first, *tokens = line.split(" ")
            merges.update(
                (base64.b64decode(token), int(first) + at) for at, token in enumerate(tokens)
            )
        encoding = tiktoken.Encoding(
            "o200k_base",
            pat_str=told["pat_str"],
            mergeable_ranks=merges,
            special_tokens=told["special_tokens"],
        )
    return lambda text: len(encoding.encode(text, disallowed_special=()))


def _other(path: Path | None) -> Count | str:
    """What counts tokens of a tokenizer in a file; in words what is missing for it."""
    if path is None:
        return "no --tokenizer FILE was given"
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return "tokenizers is not installed: pip install tokenizers"
    tokenizer = Tokenizer.from_file(str(path))
    return lambda text: len(tokenizer.encode(text).ids)


def _texts(paths: tuple[str, ...]) -> list[str]:
    """The texts of the repository's own files below these paths, of 200 bytes and more."""
    listed = subprocess.run(
        ["git", "-C", str(_ROOT), "ls-files", "-z", "-co", "--exclude-standard", *paths],
        check=True,
        capture_output=True,
    )
    found = []
    for name in sorted(set(listed.stdout.decode().split("\0")) - {""}):
        try:
            text = (_ROOT / name).read_text("utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        if len(text) >= 200 and "\0" not in text:
            found.append(text)
    return found


def _by_script(directory: Path) -> dict[str, list[str]]:
    """The texts of the Markdown files in a directory by their script: its lines, and no others."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(directory.rglob("*.md")):
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        script = _script(text)
        latin = script.startswith("Latin")
        of_it = [
            line
            for line in text.split("\n")
            if _beyond(line) * 3 >= len(line) or (latin and _beyond(line))
        ]
        if script and len("".join(of_it)) >= 400:
            found[script].append("\n".join(of_it))
    return dict(sorted(found.items()))


def _script(text: str) -> str:
    """The script that most letters beyond ASCII are of; empty for fewer than 300 of them."""
    letters = (one for one in text if ord(one) > 127 and one.isalpha())
    counts = Counter(unicodedata.name(one, "?").split()[0] for one in letters)
    if counts.total() < 300:
        return ""
    if counts["HIRAGANA"] + counts["KATAKANA"] > counts.total() / 10:
        return "Japanese"
    name = counts.most_common(1)[0][0]
    return {"CJK": "Chinese", "HANGUL": "Korean", "LATIN": "Latin with accents"}.get(
        name, name.capitalize()
    )


def _beyond(line: str) -> int:
    return sum(ord(one) > 127 for one in line)


def _errors(texts: list[str], count: Count) -> tuple[str, str, str]:
    """The median and the ninth decile of the error of single files, and the error of
    all together.
    """
    pairs = [(estimate(text.encode()), count(text)) for text in texts]
    errors = sorted(abs(ours / theirs - 1) for ours, theirs in pairs)
    total = sum(ours for ours, _ in pairs) / sum(theirs for _, theirs in pairs) - 1
    return (
        f"{errors[len(errors) // 2]:.1%}",
        f"{errors[len(errors) * 9 // 10]:.1%}",
        f"{total:+.1%}",
    )


def main() -> int:
    """Print the table; 1 when there is no tokenizer to compare with."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.tokens", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--ranks", type=Path, metavar="FILE", help="o200k_base.json of js-tiktoken")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="a tokenizer.json")
    parser.add_argument(
        "--texts",
        type=Path,
        metavar="DIRECTORY",
        help="also by script, of the Markdown files there",
    )
    asked = parser.parse_args()
    counts = {"o200k_base": _o200k(asked.ranks), "the other": _other(asked.tokenizer)}
    for name, count in counts.items():
        if isinstance(count, str):
            print(f"{name}: left out: {count}", file=sys.stderr)
    usable = {name: count for name, count in counts.items() if not isinstance(count, str)}
    if not usable:
        return 1
    titles = [
        f"{name}: {what}" for name in usable for what in ("median", "nine of ten within", "in all")
    ]
    print("| files | " + " | ".join(titles) + " |\n|" + " --- |" * (len(titles) + 1))
    kinds = {kind: _texts(paths) for kind, paths in _KINDS.items()}
    if asked.texts is not None:
        kinds |= _by_script(asked.texts)
    for kind, texts in kinds.items():
        cells = [cell for count in usable.values() for cell in _errors(texts, count)]
        print(f"| {kind} ({len(texts)}) | " + " | ".join(cells) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
