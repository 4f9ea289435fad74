"""The promises about any bytes in the file of a capsule. The tests use this, and the atheris target
beside it.
"""

from __future__ import annotations

import os
from pathlib import Path

from capsule import Store
from capsule.errors import CapsuleError
from capsule.format.json import codec

__all__ = ["StoreOfBytes"]


class StoreOfBytes:
    """A store with one good conversation, and one whose file gets bytes again and again.

    Args:
        root: An empty directory.
    """

    def __init__(self, root: Path) -> None:
        Store.init(root)
        self._root = root
        self.path = root / "conversations" / "odd.json"
        self._store = Store.open(root, keep_locks=False)
        self._good = self._store.create(title="Good", type="group").id
        self._written = 0

    def close(self) -> None:
        self._store.close()

    def try_bytes(self, data: bytes) -> str:
        """Put `data` into the file and use it in every way. Returns: "appended" or "refused".

        Raises:
            AssertionError: A promise was broken.
        """
        for place in (self._root / ".capsule" / "quarantine").glob("*"):
            place.unlink()
        copy = self._root / "copy"
        copy.write_bytes(data)
        os.utime(copy, (1_700_000_000, 1_700_000_000))
        copy.rename(self.path)
        store = self._store
        uses = (
            lambda: store.load("odd"),
            lambda: store.tail("odd", 2),
            lambda: store.head("odd"),
            lambda: store.read("odd"),
            lambda: store.document("odd"),
            lambda: store.resolve("odd"),
        )
        succeeded = [self._use(use, data) for use in uses]
        heads = {head.id: head for head in store.heads()}
        assert set(heads) == {"odd", self._good} and not heads[self._good].damaged
        before = self.path.read_bytes()
        appended = self._use(lambda: store.append("odd", content="new"), before)
        if appended:
            after = self.path.read_bytes()
            assert codec.encode(store.document("odd")) == after
            assert store.tail("odd", 1)[0].content == "new"
            assert succeeded[0], "a file that can be appended to can be read"
        self._written += 1
        assert store.append(self._good, content="x").at == self._written - 1
        return "appended" if appended else "refused"

    def _use(self, use: object, data: bytes) -> bool:
        """Whether `use` succeeds. If it fails, assert that the file is unchanged, or mended and
        kept.
        """
        assert callable(use)
        try:
            use()
        except CapsuleError:
            fine = False
        else:
            fine = True
        now = self.path.read_bytes()
        if now != data and not fine:
            assert self._is_kept(data), "a refused file is unchanged, or mended and kept"
        return fine

    def _is_kept(self, data: bytes) -> bool:
        return any(
            place.read_bytes() == data
            for place in (self._root / ".capsule" / "quarantine").glob("*")
        )
