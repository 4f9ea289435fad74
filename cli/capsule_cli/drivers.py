"""The programs that git starts: the filter, the merge driver, the diff driver and the check before
a commit.

Git starts some of them for every file. So this is a program of its own, `python -P -m
capsule_cli.drivers`, and it imports only what it needs: neither typer nor pydantic.

What must stay true: this module only connects streams and arguments with `capsule/git/`. Wrong
input ends in a message on stderr. When git ends, this program ends without a message.
"""

from __future__ import annotations

import os
import signal
import sys

from capsule.errors import CapsuleError
from capsule_cli.shared.output import discard_stdout, print_notice

_USAGE = """\
usage: python -P -m capsule_cli.drivers COMMAND, started by git as `capsule git setup` writes it
  filter                     speak git's filter protocol on stdin and stdout
  merge %O %A %B %L %P       merge into %A
  textconv FILE              print FILE as text
  pre-commit                 check what is staged in the repository around
  version                    print the version
"""


def main() -> int:
    """Do what git asks for. Return the exit code."""
    # At Ctrl-C, or when git ends, the process may end at any point: it holds nothing.
    for name in ("SIGINT", "SIGPIPE"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    command, *arguments = sys.argv[1:] or [""]
    commands = {
        "filter": _filter,
        "merge": _merge,
        "textconv": _textconv,
        "pre-commit": _pre_commit,
        "version": _version,
    }
    try:
        if command in commands:
            return commands[command](arguments)
    except CapsuleError as error:
        _print_lines(error.message)
        return error.exit_code
    except BrokenPipeError:
        discard_stdout()
        return 0
    sys.stderr.write(_USAGE)
    return 2


def _filter(arguments: list[str]) -> int:
    from capsule.git.drivers import cleaner, serve_filter

    serve_filter(
        sys.stdin.buffer, sys.stdout.buffer, cleaner(os.getcwd(), _print_lines), _print_lines
    )
    return 0


def _textconv(arguments: list[str]) -> int:
    from capsule.git.textconv import as_text

    if len(arguments) != 1:
        sys.stderr.write(_USAGE)
        return 2
    try:
        with open(arguments[0], "rb") as file:
            data = file.read()
    except OSError as error:
        _print_lines(f"{arguments[0]}: can't be read: {error.strerror}")
        return 1
    for piece in as_text(data):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
    return 0


def _merge(arguments: list[str]) -> int:
    from capsule.git.drivers import MergeFiles, merge_files

    # %L is missing in older configurations of a clone: then markers have git's usual length.
    *files, path = arguments or [""]
    size = int(files.pop()) if len(files) == 4 and files[3].isdecimal() else 7
    if len(files) != 3:
        sys.stderr.write(_USAGE)
        return 2
    is_merged, messages = merge_files(MergeFiles(*files), path, size, os.getcwd())
    for message in messages:
        _print_lines(message)
    return 0 if is_merged else 1


def _pre_commit(arguments: list[str]) -> int:
    from capsule.git.drivers import problems_of_commit
    from capsule.git_program import Git, hook_variables

    lines = problems_of_commit(Git(os.getcwd(), variables=hook_variables()))
    for line in lines:
        _print_lines(line)
    return 1 if lines else 0


def _version(arguments: list[str]) -> int:
    from capsule import __version__

    sys.stdout.write(f"{__version__}\n")
    return 0


def _print_lines(text: str) -> None:
    for line in text.replace("\r\n", "\n").split("\n"):
        print_notice(line)


if __name__ == "__main__":
    sys.exit(main())
