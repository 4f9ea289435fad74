"""Every place of a few bytes in many.

What must stay true: with the C library's search and without it the places are the same. Pure.

The methods of `bytes` search with a table of 64 bits, in which most letters of `"parent"` meet those of any text, and
hold Python's lock meanwhile. glibc's `memmem` skips by a table of pairs of bytes (string/memmem.c): it is three times
as fast. Other C libraries have one that may be slower, so that they are not asked. To load `ctypes` takes milliseconds,
so that it isn't for what is short.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

__all__ = ["by_memmem", "by_methods", "places"]

#: From so many bytes on the C library is asked.
WORTH_LOADING = 4 << 20

_Find = Callable[[bytes, bytes], list[int]]


def places(size: int) -> _Find:
    """What gives the offsets at which a needle begins in a block, in order; the needle must not overlap itself.

    Args:
        size: So many bytes are going to be searched, in blocks.
    """
    return by_methods if size < WORTH_LOADING else _fastest()


def by_methods(block: bytes, needle: bytes) -> list[int]:
    """As `places` says, by the methods of `bytes`."""
    found, at = [], len(block)
    while (at := block.rfind(needle, 0, at)) >= 0:  # Backwards is twice as fast with needles like these.
        found.append(at)
    found.reverse()
    return found


@cache
def _fastest() -> _Find:
    return by_memmem() or by_methods


def by_memmem() -> _Find | None:
    """As `places` says, by the C library; None where that is not known to be fast."""
    if sys.platform != "linux":
        return None
    import ctypes

    libc = ctypes.CDLL(None)
    if not (hasattr(libc, "memmem") and hasattr(libc, "gnu_get_libc_version")):
        return None
    memmem = libc.memmem
    memmem.restype = ctypes.c_void_p
    memmem.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)

    def find(block: bytes, needle: bytes) -> list[int]:
        begin = ctypes.cast(ctypes.c_char_p(block), ctypes.c_void_p).value  # `block` stays while it is looked through.
        if begin is None:
            return []
        found, at, end = [], begin, begin + len(block)
        while (at := memmem(at, end - at, needle, len(needle)) or 0) > 0:
            found.append(at - begin)
            at += len(needle)
        return found

    return find
