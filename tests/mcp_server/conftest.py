"""The two eras of the protocol."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["legacy", "2026-07-28"])
def era(request: pytest.FixtureRequest) -> str:
    """How the SDK's client negotiates: the handshake up to 2025-11-25, or the protocol of 2026-07-28."""
    return str(request.param)
