"""Starting a program, and sending a request, for a doorbell.

What must stay true: nothing takes longer than `LIMIT_S`, no shell reads what is run, and a failure
is an OSError. What starts programs and sends requests is loaded when it is used: a hook loads the
doorbells, and is in a hurry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: Seconds that a doorbell may take.
LIMIT_S = 10.0


def run(words: Sequence[str], text: str = "") -> bool:
    """Run a program with a text on its standard input; whether its exit code is 0.
    Raises OSError.
    """
    import subprocess

    try:
        done = subprocess.run(
            words,
            input=text.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{words[0]} did not end within {LIMIT_S:g} s") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()[-300:]
        raise OSError(f"{words[0]}: exit code {done.returncode}: {said}")
    return True


def post(url: str, body: dict[str, Any] | bytes, headers: Mapping[str, str] | None = None) -> int:
    """Send JSON to an http or https address; the status of the answer, 2xx. Raises OSError, as
    URLError is one.

    Args:
        url: The address.
        body: The JSON, or the bytes that it is.
        headers: More headers.
    """
    from urllib.request import Request, urlopen

    import orjson

    if not url.startswith(("http://", "https://")):
        raise OSError(f"{url} is neither http nor https")
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    request = Request(
        url, data, {"content-type": "application/json", **(headers or {})}, method="POST"
    )
    with urlopen(request, timeout=LIMIT_S) as answer:
        return int(answer.status)
