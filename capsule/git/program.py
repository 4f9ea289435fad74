"""Running the `git` program.

What must stay true: what git answers is read in its machine formats only, and byte for byte; a git that fails is an
error that carries git's own words; and nothing here knows a conversation.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from capsule.errors import GitFailed, Refused

__all__ = ["Answer", "Git"]

#: What any call gets: paths as they are, and no pager.
_ALWAYS = ("--no-pager", "-c", "core.quotePath=false", "-c", "advice.detachedHead=false")


class Answer(NamedTuple):
    """What git answered: its exit code, and what it wrote."""

    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        """Standard output as text, without the line end."""
        return self.out.decode("utf-8", "surrogateescape").rstrip("\r\n")

    @property
    def fields(self) -> list[str]:
        """Standard output as the NUL-ended texts of a command that was given `-z`."""
        found = self.out.decode("utf-8", "surrogateescape").split("\0")
        return found[:-1] if found and not found[-1] else found

    @property
    def words(self) -> str:
        """What git said on standard error, or else on standard output."""
        return (self.err or self.out).decode("utf-8", "replace").strip()


@dataclass(frozen=True, slots=True)
class Git:
    """Git, in one directory.

    Attributes:
        directory: Where it runs.
        environment: What it runs in; None: what this process runs in. Inside a hook of git, whoever calls takes the
            variables out by which git tells the hook its repository.
        config: Settings for this call only, which stand above all others.
    """

    directory: str
    environment: Mapping[str, str] | None = None
    config: Mapping[str, str] = field(default_factory=dict)

    def run(
        self,
        *arguments: str,
        input: bytes | None = None,
        fine: Iterable[int] = (0,),
        timeout_s: float | None = None,
    ) -> Answer:
        """Run one command, and wait for its end.

        Args:
            arguments: The command, `status` for example, and its arguments.
            input: What it reads from standard input; None: nothing.
            fine: The exit codes that are no failure.
            timeout_s: Seconds after which it is ended; None: it may take as long as it takes.

        Raises:
            GitFailed: It ended with another exit code, or in too long a time.
            Refused: There is no program `git`.
        """
        given = [part for name, value in self.config.items() for part in ("-c", f"{name}={value}")]
        command = ["git", *_ALWAYS, *given, *arguments]
        try:
            done = subprocess.run(
                command,
                cwd=self.directory,
                env=self.environment,
                input=b"" if input is None else input,
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        except FileNotFoundError as error:
            raise Refused("there is no program git here; install it, and try again", path=self.directory) from error
        except subprocess.TimeoutExpired as error:
            what = f"git {arguments[0]} in {self.directory} took longer than {timeout_s:g} seconds, and was ended"
            raise GitFailed(what, command=list(arguments), words="") from error
        answer = Answer(done.returncode, done.stdout, done.stderr)
        if done.returncode not in fine:
            what = f"git {arguments[0]} failed in {self.directory}: {answer.words or f'exit code {answer.code}'}"
            raise GitFailed(what, command=list(arguments), words=answer.words)
        return answer

    def with_config(self, config: Mapping[str, str]) -> Git:
        """The same, with these settings besides."""
        return Git(self.directory, self.environment, {**self.config, **config})
