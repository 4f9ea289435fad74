"""What another program saved, compared with what the store wrote lately."""

from __future__ import annotations
