"""Running the `git` program: the one place that starts it.

What must stay true: unless a person commits or exchanges with a remote (`trusting`), git runs
nothing that a repository names, and reaches no network: the repository may have come out of an
archive. Git's answers are read in its machine formats only, byte for byte; when git fails, the
error has git's own words; and nothing here knows a conversation.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from capsule.errors import GitFailed, Refused

#: For every call: paths as they are, a history that doesn't depend on a person's settings, and no
#: program that pages, watches files or checks signatures.
_ALWAYS = (
    "--no-pager",
    *(
        "-c",
        "core.quotePath=false",
        "-c",
        "advice.detachedHead=false",
        "-c",
        "core.fsmonitor=false",
    ),
    *("-c", "log.showSignature=false", "-c", "log.showRoot=true", "-c", "log.follow=false"),
)
#: Hooks are looked for where there are none.
_NO_HOOKS = ("-c", f"core.hooksPath={os.devnull}")
#: No object is fetched that a partial clone lacks, nobody is asked for a password, and a command
#: that only reads writes no index.
_READS = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
}
#: The transports that git allows by itself, whatever a repository allows.
_PROTOCOLS = "file:git:http:https:ssh"
#: The settings of a filter, and the values that turn it off.
_FILTER = {"clean": "", "smudge": "", "process": "", "required": "false"}
#: The variables by which git names its repository to hooks and drivers: `git rev-parse
#: --local-env-vars` (git 2.39). The settings of `git -c` (GIT_CONFIG_*) are the caller's.
_OF_HOOKS = re.compile(
    "GIT_(ALTERNATE_OBJECT_DIRECTORIES|COMMON_DIR|DIR|GRAFT_FILE|IMPLICIT_WORK_TREE|INDEX_FILE|INTERNAL_SUPER_PREFIX|"
    "NO_REPLACE_OBJECTS|OBJECT_DIRECTORY|PREFIX|REPLACE_REF_BASE|SHALLOW_FILE|WORK_TREE)"
)


def clean_environment() -> dict[str, str]:
    """This process's environment without what a hook's git put there, and with git's messages in
    English.
    """
    kept = {name: value for name, value in os.environ.items() if not _OF_HOOKS.fullmatch(name)}
    return {**kept, "LC_ALL": "C.UTF-8", "LANGUAGE": "C"}


def hook_variables() -> dict[str, str]:
    """The variables that git gave to this process, which is a hook or a driver."""
    return {name: value for name, value in os.environ.items() if _OF_HOOKS.fullmatch(name)}


class GitOutput(NamedTuple):
    """Git's exit code and output."""

    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        """Standard output as text, without the line end."""
        return self.out.decode("utf-8", "surrogateescape").rstrip("\r\n")

    @property
    def fields(self) -> list[str]:
        """Standard output as the NUL-ended texts of a command with `-z`."""
        fields = self.out.decode("utf-8", "surrogateescape").split("\0")
        return fields if fields[-1] else fields[:-1]

    @property
    def words(self) -> str:
        """Standard error, or if that is empty standard output."""
        return (self.err or self.out).decode("utf-8", "replace").strip()


@dataclass(frozen=True, slots=True)
class Git:
    """Git, in one directory.

    Attributes:
        directory: Where it runs.
        config: Settings that overrule all others.
        variables: Variables of its environment besides `clean_environment`.
        trusting: Whether hooks may run, and remotes be reached: for what a person commits or
            exchanges.
    """

    directory: str
    config: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    trusting: bool = False

    def start(self, *arguments: str, errors: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        """Start a command, with pipes to its streams; `errors` is its standard error. Raises
        Refused without git.
        """
        config = [part for name, value in self.config.items() for part in ("-c", f"{name}={value}")]
        hooks = () if self.trusting else _NO_HOOKS
        env = {**clean_environment(), **self.variables}
        env = {"GIT_ALLOW_PROTOCOL": _PROTOCOLS, **env} if self.trusting else {**env, **_READS}
        pipe = subprocess.PIPE
        command = ["git", *_ALWAYS, *hooks, *config, *arguments]
        try:
            return subprocess.Popen(
                command, cwd=self.directory, env=env, stdin=pipe, stdout=pipe, stderr=errors
            )
        except FileNotFoundError as error:
            raise Refused(
                "the program git is not installed; install it, and try again", path=self.directory
            ) from error

    def run(
        self,
        *arguments: str,
        input: bytes | Iterable[str] = b"",
        ok_codes: Iterable[int] = (0,),
        timeout_s: float | None = None,
    ) -> GitOutput:
        """Run one command, and wait for its end.

        Args:
            input: Its standard input; texts are each ended by NUL.
            ok_codes: The exit codes that are no failure.
            timeout_s: Seconds after which it is killed.

        Raises:
            GitFailed: It ended with another exit code, or took too long.
            Refused: There is no program `git`.
        """
        if not isinstance(input, bytes):
            input = "".join(f"{text}\0" for text in input).encode("utf-8", "surrogateescape")
        with self.start(*arguments) as process:
            try:
                out, err = process.communicate(input, timeout_s)
            except subprocess.TimeoutExpired as error:
                process.kill()
                late = (
                    f"git {arguments[0]} in {self.directory} took longer than {timeout_s:g} "
                    "seconds, and was killed"
                )
                raise GitFailed(late, command=list(arguments), words="") from error
            except BaseException:
                process.kill()
                raise
        answer = GitOutput(process.returncode, out, err)
        if answer.code not in ok_codes:
            reason = (
                f"git {arguments[0]} failed in {self.directory}: "
                f"{answer.words or f'exit code {answer.code}'}"
            )
            raise GitFailed(reason, command=list(arguments), words=answer.words)
        return answer

    def head(self) -> str | None:
        """The commit that HEAD names; None before the first one."""
        return (
            self.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}", ok_codes=(0, 1, 128)).text
            or None
        )

    def with_config(self, config: Mapping[str, str]) -> Git:
        """Git with these settings besides."""
        return replace(self, config={**self.config, **config})

    def without_filters(self) -> Git:
        """Git without any filter, for commands that read files of a working tree which others have
        configured.

        Raises:
            GitFailed: The configuration can't be read.
            Refused: A filter has a name that can't be turned off.
        """
        names = self.run(
            "config", "-z", "--name-only", "--get-regexp", r"^filter\.", ok_codes=(0, 1)
        ).fields
        drivers = {name.rpartition(".")[0] for name in names}
        for driver in drivers:
            if "=" in driver:
                raise Refused(
                    f"git's configuration has {driver!r}, which can't be turned off",
                    path=self.directory,
                )
        return self.with_config(
            {f"{driver}.{name}": off for driver in drivers for name, off in _FILTER.items()}
        )
