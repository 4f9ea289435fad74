"""Run the `git` program. No other module starts it.

What must stay true: git runs no program that a repository names, and uses no network, unless a
person commits or exchanges with a remote (`Git.trusting`). The repository may have come from an
archive. Git's output is read in its machine formats only, byte for byte. If git fails, the error
has git's own message.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from capsule.errors import GitFailed, Refused

#: Options of every call. Paths are unquoted, a history does not depend on a person's settings, and
#: no program shows pages, watches files or checks signatures.
_COMMON_OPTIONS = (
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
#: Git finds no hooks at this path.
_NO_HOOKS = ("-c", f"core.hooksPath={os.devnull}")
#: Git fetches no missing object of a partial clone, asks for no password, and writes no index in a
#: command that only reads.
_READ_ONLY = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
}
#: The transports that git allows by default, whatever a repository allows.
_PROTOCOLS = "file:git:http:https:ssh"
#: The settings of a filter, and the values that turn it off.
_FILTER_OFF = {"clean": "", "smudge": "", "process": "", "required": "false"}
#: The variables with which git names its repository to hooks and drivers: `git rev-parse
#: --local-env-vars` (git 2.39). The settings of `git -c` (GIT_CONFIG_*) are the caller's.
_HOOK_VARIABLES = re.compile(
    "GIT_(ALTERNATE_OBJECT_DIRECTORIES|COMMON_DIR|DIR|GRAFT_FILE|IMPLICIT_WORK_TREE|INDEX_FILE|INTERNAL_SUPER_PREFIX|"
    "NO_REPLACE_OBJECTS|OBJECT_DIRECTORY|PREFIX|REPLACE_REF_BASE|SHALLOW_FILE|WORK_TREE)"
)


def clean_environment() -> dict[str, str]:
    """Return this process's environment without the variables that git gives a hook, and with git's
    messages in English.
    """
    hook_names = hook_variables().keys()
    environment = {name: value for name, value in os.environ.items() if name not in hook_names}
    return {**environment, "LC_ALL": "C.UTF-8", "LANGUAGE": "C"}


def hook_variables() -> dict[str, str]:
    """Return the variables that git gave this process, which is a hook or a driver."""
    return {name: value for name, value in os.environ.items() if _HOOK_VARIABLES.fullmatch(name)}


class GitOutput(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        """Standard output as text, without the line end."""
        return self.out.decode("utf-8", "surrogateescape").rstrip("\r\n")

    @property
    def fields(self) -> list[str]:
        """Standard output as a list of texts, each of which ends with NUL (option `-z`)."""
        fields = self.out.decode("utf-8", "surrogateescape").split("\0")
        return fields if fields[-1] else fields[:-1]

    @property
    def words(self) -> str:
        """Standard error, or standard output if standard error is empty."""
        return (self.err or self.out).decode("utf-8", "replace").strip()


@dataclass(frozen=True, slots=True)
class Git:
    """Runs git in one directory.

    Attributes:
        directory: The directory.
        config: Settings that overrule all others.
        variables: Variables of its environment besides those of `clean_environment`.
        trusting: Whether hooks may run and remotes may be reached, because a person commits or
            exchanges.
    """

    directory: str
    config: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    trusting: bool = False

    def start(self, *arguments: str, errors: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        """Start a command, with pipes to its streams.

        Args:
            arguments: The command and its arguments.
            errors: Its standard error, as `subprocess.Popen` takes it.

        Raises Refused if git is not installed.
        """
        options = list(_COMMON_OPTIONS)
        env = {**clean_environment(), **self.variables}
        if self.trusting:
            env.setdefault("GIT_ALLOW_PROTOCOL", _PROTOCOLS)
        else:
            options += _NO_HOOKS
            env |= _READ_ONLY
        for name, value in self.config.items():
            options += ["-c", f"{name}={value}"]
        pipe = subprocess.PIPE
        command = ["git", *options, *arguments]
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
            arguments: The command and its arguments.
            input: Its standard input. Each text of an iterable gets a NUL at its end.
            ok_codes: The exit codes that are no failure.
            timeout_s: Seconds after which it is killed.

        Raises:
            GitFailed: It ended with another exit code, or took too long.
            Refused: The program `git` is not installed.
        """
        data = input
        if not isinstance(data, bytes):
            data = "".join(f"{text}\0" for text in data).encode("utf-8", "surrogateescape")
        with self.start(*arguments) as process:
            try:
                out, err = process.communicate(data, timeout_s)
            except subprocess.TimeoutExpired as error:
                process.kill()
                message = (
                    f"git {arguments[0]} in {self.directory} took longer than {timeout_s:g} "
                    "seconds, and was killed"
                )
                raise GitFailed(message, command=list(arguments), words="") from error
            except BaseException:
                process.kill()
                raise
        output = GitOutput(process.returncode, out, err)
        if output.code not in ok_codes:
            reason = (
                f"git {arguments[0]} failed in {self.directory}: "
                f"{output.words or f'exit code {output.code}'}"
            )
            raise GitFailed(reason, command=list(arguments), words=output.words)
        return output

    def head(self) -> str | None:
        """Return the commit of HEAD. None: the branch has no commit yet."""
        command = ("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        return self.run(*command, ok_codes=(0, 1, 128)).text or None

    def with_config(self, config: Mapping[str, str]) -> Git:
        """Return git with additional settings."""
        return replace(self, config={**self.config, **config})

    def without_filters(self) -> Git:
        """Return git without any filter, for commands that read files of a working tree that others
        configured.

        Raises:
            GitFailed: The configuration can't be read.
            Refused: A filter has a name that can't be turned off.
        """
        names = self.run(
            "config", "-z", "--name-only", "--get-regexp", r"^filter\.", ok_codes=(0, 1)
        ).fields
        filters = {name.rpartition(".")[0] for name in names}
        config: dict[str, str] = {}
        for filter in filters:
            if "=" in filter:
                raise Refused(
                    f"git's configuration has {filter!r}, which can't be turned off",
                    path=self.directory,
                )
            config |= {f"{filter}.{setting}": value for setting, value in _FILTER_OFF.items()}
        return self.with_config(config)
