"""The errors of the client: the kinds of the library as text."""

from __future__ import annotations

from typing import Any, Optional


class DistlockError(Exception):
    """A failure, with the kind that the daemon reports."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        """`timeout`, `lost`, `unavailable`, `invalid_input` and so on; `unknown` if the request may have been applied."""


class NotAcquired(DistlockError):
    """Another owner holds the lock."""

    def __init__(self, message: str, holder: Optional[dict[str, Any]]) -> None:
        super().__init__("timeout", message)
        self.holder = holder
        """The holder, as `distlock show --json` prints it, if it is known."""


class Lost(DistlockError):
    """The lock was lost."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__("lost", f"lock {name!r} was lost: {reason}")
        self.reason = reason
        """`expired`, `broken`, `revoked`, `silent`, `closed` and so on."""
