"""Find the store to use, as git finds its repository, or make one.

A store is a directory with a `capsule.toml`, or an address in PostgreSQL. `locate_store` looks for
it in this order: a given path, `CAPSULE_STORE`, the directories upwards, and the user's own store.
`open_engine` opens the engine of the store.

What must stay true: no existing file is ever overwritten. Only the doors and this module read the
environment, so that every door finds the same store.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from capsule import settings
from capsule.disk.whole_files import translate_errors
from capsule.engines import opening
from capsule.errors import InvalidInput, NotFound, Refused, Remedy

if TYPE_CHECKING:
    from capsule.engines.interface import Engine

_log = logging.getLogger("capsule")

#: Why a store is the one to use, and its explanation for a person.
Reason = Literal["option", "environment", "above", "own"]
_EXPLANATIONS: Final[dict[Reason, str]] = {
    "option": "named with --store",
    "environment": "named by CAPSULE_STORE",
    "above": f"the nearest directory upwards with a {settings.FILE_NAME}",
    "own": "your own store, since none was named and no directory upwards has a "
    f"{settings.FILE_NAME}",
}


#: Addresses with their passwords, by the address without the password that replaced them in the
#: environment.
_hidden_addresses: dict[str, str] = {}


class StoreLocation(NamedTuple):
    """The location of the store to use.

    Attributes:
        root: Its directory, or its address in a database without a password.
        reason: Why it is this one.
    """

    root: str
    reason: Reason

    @property
    def explanation(self) -> str:
        """The reason for a person."""
        return _EXPLANATIONS[self.reason]


def open_engine(path: str | os.PathLike[str] | None) -> tuple[str, settings.Settings, Engine]:
    """Return the location of the store to use, as `find_store` does, its settings, and its engine.

    Raises NotFound, InvalidInput, InvalidDocument, Refused, and StorageFailed if its database can't
    be reached.
    """
    url = database_address(path)
    if url is not None:
        import platformdirs

        state_directory = platformdirs.user_data_dir("capsule", appauthor=False)
        engine, stored_settings = opening.in_database(url, state_directory)
        return opening.without_password(url), stored_settings, engine
    root = find_store(path)
    file_settings = load_settings(root)
    return root, file_settings, opening.files(root, file_settings)


def database_address(path: str | os.PathLike[str] | None) -> str | None:
    """Return the address of the database that is named as the store, with its password. None: the
    store is not in a database.
    """
    name = path or os.environ.get("CAPSULE_STORE")
    if not name or not opening.is_address(name):
        return None
    url = os.fspath(name)
    return _hidden_addresses.get(url, url)


def hide_password() -> None:
    """Remove the password from `CAPSULE_STORE`, so that no child process gets it. This process
    remembers it.
    """
    with suppress(InvalidInput):
        url = os.environ.get("CAPSULE_STORE", "")
        if opening.is_address(url):
            hidden_address = opening.without_password(url)
            os.environ["CAPSULE_STORE"] = hidden_address
            _hidden_addresses[hidden_address] = url


def find_store(path: str | os.PathLike[str] | None, *, is_made: bool = True) -> str:
    """Return the directory of the store to use, as `locate_store` finds it. If it is the user's own
    and does not exist, it is made, unless `is_made` is False.

    Raises NotFound, Refused.
    """
    root, reason = locate_store(path)
    if reason == "own" and is_made:
        ensure_store(root)
    return root


def locate_store(path: str | os.PathLike[str] | None) -> StoreLocation:
    """Return the location of the store to use: `path`, else `CAPSULE_STORE`, else the nearest
    directory upwards with a `capsule.toml`, else the user's own store, which need not exist. Makes
    nothing.

    Raises:
        NotFound: `path` or `CAPSULE_STORE` is a directory that is no store.
        Refused: The nearest store upwards belongs to another user, who may have planted it there.
    """
    if path:
        return _named_location(path, "option", "--store")
    from_environment = os.environ.get("CAPSULE_STORE")
    if from_environment:
        return _named_location(from_environment, "environment", "CAPSULE_STORE")
    directory = os.getcwd()
    while True:
        if os.path.isfile(os.path.join(directory, settings.FILE_NAME)):
            _ensure_trusted(directory)
            return StoreLocation(directory, "above")
        parent = os.path.dirname(directory)
        if parent == directory:
            break
        directory = parent
    import platformdirs

    own_store = platformdirs.user_data_dir("capsule", appauthor=False)
    return StoreLocation(os.path.abspath(own_store), "own")


def _named_location(name: str | os.PathLike[str], reason: Reason, origin: str) -> StoreLocation:
    """Return the location of a store that was named. `origin` is the option or variable with the
    name, for the error.

    Raises NotFound: it is a directory that is no store.
    """
    if opening.is_address(name):
        return StoreLocation(opening.without_password(str(name)), reason)
    root = os.path.abspath(name)
    if os.path.isfile(os.path.join(root, settings.FILE_NAME)):
        return StoreLocation(root, reason)
    message = f"{root} is not a Capsule store: it has no {settings.FILE_NAME} (from {origin})"
    if os.path.isfile(root):
        raise NotFound(f"{message}; name a directory", id=root)
    raise NotFound(message, remedy=Remedy("init", root), id=root)


def _ensure_trusted(root: str) -> None:
    """Check that a store that the user did not name does not belong to another user, as git does.
    Its settings would take effect, and its conversations would look like the user's own. Raises
    Refused.
    """
    if not hasattr(os, "geteuid"):
        return
    user = os.geteuid()
    trusted = {0, user}
    sudo_user = os.environ.get("SUDO_UID", "")
    if user == 0 and sudo_user.isdecimal():
        trusted.add(int(sudo_user))
    for path in (root, os.path.join(root, settings.FILE_NAME)):
        owner = os.stat(path).st_uid
        if owner not in trusted:
            raise Refused(
                f"{path} belongs to another user (uid {owner}), so the store there is used only "
                "when it is named: "
                f"--store {root}, or CAPSULE_STORE={root}",
                path=path,
            )


def ensure_store(directory: str | os.PathLike[str]) -> list[str]:
    """Make a store of `directory`, or in the database with this address. Existing files do not
    change.

    Returns:
        The paths that were made. For a database, its address without a password if it was made.

    Raises:
        Refused, StorageFailed: The system refused a read or a write.
    """
    if not opening.is_address(directory):
        return opening.make_files(os.path.abspath(directory))
    url = str(directory)
    return [opening.without_password(url)] if opening.make_in_database(url) else []


def load_settings(root: str) -> settings.Settings:
    """Return the settings of the store at `root`. Unknown settings are logged as warnings.

    Raises:
        InvalidDocument: `capsule.toml` can't be accepted.
    """
    path = os.path.join(root, settings.FILE_NAME)
    with translate_errors(path, "read"), open(path, "rb") as file:
        parsed = settings.parse(file.read(), path)
    for problem in parsed.unknown:
        _log.warning("%s", problem)
    return parsed
