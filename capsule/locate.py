"""Finding a store, as git finds its repository, and making one.

What must stay true: a store is a directory with a `capsule.toml`. No existing file is ever
overwritten. This is the only module below the doors that reads the environment, so that every door
finds the same store.
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

#: Why a store is the one to use, and how a person reads it.
Reason = Literal["option", "environment", "above", "own"]
_WORDS: Final[dict[Reason, str]] = {
    "option": "named with --store",
    "environment": "named by CAPSULE_STORE",
    "above": f"the nearest directory upwards with a {settings.FILE_NAME}",
    "own": "your own store, since none was named and no directory upwards has a "
    f"{settings.FILE_NAME}",
}


#: The address with its password, for one that stands in the environment without it.
_given: dict[str, str] = {}


class StoreLocation(NamedTuple):
    """The directory of the store to use, or its address in a database without a password; and why
    it is this one.
    """

    root: str
    reason: Reason

    @property
    def words(self) -> str:
        """The reason for a person."""
        return _WORDS[self.reason]


def open_engine(path: str | os.PathLike[str] | None) -> tuple[str, settings.Settings, Engine]:
    """The place of the store to use, as `find_store` finds it, its settings, and its engine.

    Raises NotFound, InvalidInput, InvalidDocument, Refused; StorageFailed: its database can't be
    reached.
    """
    if (url := database_address(path)) is not None:
        import platformdirs

        kept = platformdirs.user_data_dir("capsule", appauthor=False)
        engine, settings_there = opening.in_database(url, kept)
        return opening.without_password(url), settings_there, engine
    root = find_store(path)
    settings_there = load_settings(root)
    return root, settings_there, opening.files(root, settings_there)


def database_address(path: str | os.PathLike[str] | None) -> str | None:
    """The address of the database that is named as the store, with its password; None: none is."""
    place = path or os.environ.get("CAPSULE_STORE")
    if not place or not opening.is_address(place):
        return None
    url = os.fspath(place)
    return _given.get(url, url)


def hide_password() -> None:
    """Take the password out of `CAPSULE_STORE`, so that no child has it. This process goes on with
    it.
    """
    with suppress(InvalidInput):
        if opening.is_address(url := os.environ.get("CAPSULE_STORE", "")):
            os.environ["CAPSULE_STORE"] = shown = opening.without_password(url)
            _given[shown] = url


def find_store(path: str | os.PathLike[str] | None, *, is_made: bool = True) -> str:
    """The directory of the store to use, as `locate_store` finds it; the user's own is made if need
    be and `is_made`.

    Raises NotFound, Refused.
    """
    root, reason = locate_store(path)
    if reason == "own" and is_made:
        ensure_store(root)
    return root


def locate_store(path: str | os.PathLike[str] | None) -> StoreLocation:
    """The store to use: `path`, else `CAPSULE_STORE`, else the nearest directory upwards with a
    `capsule.toml`, else the user's own store, which need not exist. Nothing is made.

    Raises:
        NotFound: `path` or `CAPSULE_STORE` names a directory that is no store.
        Refused: The nearest store upwards belongs to another user, who may have planted it there.
    """
    database_address: tuple[tuple[str | os.PathLike[str] | None, Reason, str], ...] = (
        (path, "option", "--store"),
        (os.environ.get("CAPSULE_STORE"), "environment", "CAPSULE_STORE"),
    )
    for given, reason, origin in database_address:
        if given and opening.is_address(given):
            return StoreLocation(opening.without_password(str(given)), reason)
        if given:
            root = os.path.abspath(given)
            if not os.path.isfile(os.path.join(root, settings.FILE_NAME)):
                is_file = os.path.isfile(root)
                raise NotFound(
                    f"{root} is not a Capsule store: it has no {settings.FILE_NAME} (from {origin})"
                    + ("; name a directory" if is_file else ""),
                    remedy=None if is_file else Remedy("init", root),
                    id=root,
                )
            return StoreLocation(root, reason)
    here = os.getcwd()
    while True:
        if os.path.isfile(os.path.join(here, settings.FILE_NAME)):
            _ensure_trusted(here)
            return StoreLocation(here, "above")
        above = os.path.dirname(here)
        if above == here:
            break
        here = above
    import platformdirs

    return StoreLocation(
        os.path.abspath(platformdirs.user_data_dir("capsule", appauthor=False)), "own"
    )


def _ensure_trusted(root: str) -> None:
    """Raise Refused if a store that the user did not name belongs to another user, as git does: its
    settings and conversations would be taken for the user's own."""
    if not hasattr(os, "geteuid"):
        return
    me = os.geteuid()
    behind_sudo = os.environ.get("SUDO_UID", "") if me == 0 else ""
    trusted = {0, me, int(behind_sudo) if behind_sudo.isdecimal() else me}
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
    """Make a store of `directory`, or in the database with this address. Existing files stay as
    they are.

    Returns:
        The paths that were made; of a database its address without a password.

    Raises:
        Refused, StorageFailed: The system refused a read or a write.
    """
    if opening.is_address(directory):
        return (
            [opening.without_password(str(directory))]
            if opening.make_in_database(str(directory))
            else []
        )
    return opening.make_files(os.path.abspath(directory))


def load_settings(root: str) -> settings.Settings:
    """The settings of the store at `root`.

    Raises:
        InvalidDocument: `capsule.toml` can't be accepted.
    """
    path = os.path.join(root, settings.FILE_NAME)
    with translate_errors(path, "read"), open(path, "rb") as file:
        parsed = settings.parse(file.read(), path)
    for problem in parsed.unknown:
        _log.warning("%s", problem)
    return parsed
