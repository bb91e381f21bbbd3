"""A client of one daemon."""

from __future__ import annotations

import http.client
import secrets
from typing import Any, Optional, Union
from urllib.parse import quote

from ._clock import now
from ._errors import DistlockError
from ._hold import Hold
from ._http import Daemon, default_address

Seconds = Union[int, float]

TRIES = 3
"""How often a request for a lock is sent when its connection breaks: with the same key it is the same attempt."""

LONGEST_SILENCE = 3600.0
"""The longest silence that the daemon accepts, in seconds."""

LONGEST_WAIT = 86400.0
"""How long the daemon waits without a limit of the caller, in seconds."""

EXTRA_WAIT = 30.0
"""How much longer than the wait itself an answer may take."""


def _span(seconds: Seconds) -> str:
    return f"{round(seconds * 1000)}ms"


class Client:
    """A client of one daemon. It may be used by any number of threads."""

    def __init__(
        self, address: Optional[str] = None, *, token: Optional[str] = None, cafile: Optional[str] = None
    ) -> None:
        """`address` is the path of the daemon's unix socket, or its URL; else `DISTLOCK_SERVE`, or the usual socket."""
        self._daemon = Daemon(address or default_address(), token, cafile)

    def lock(
        self,
        name: str,
        *,
        wait: Optional[Seconds] = None,
        ttl: Seconds = 10.0,
        owner: Optional[str] = None,
        label: Optional[str] = None,
        shared: bool = False,
        slots: Optional[int] = None,
        reentrant: bool = False,
    ) -> Hold:
        """Acquires a lock. Times are in seconds.

        Waits for at most `wait`, by default for a day; 0 does not wait. Raises `NotAcquired` if another owner holds it,
        `DistlockError` for a failure. `shared` is a reader's lock, `slots` a permit of a semaphore. The lock is free again
        at most `ttl` after this process has died, and at once if it died on the daemon's machine.
        """
        body: dict[str, Any] = {"ttl": _span(ttl), "silence": _span(min(ttl, LONGEST_SILENCE))}
        if wait is not None:
            body["wait"] = _span(wait)
        if shared:
            body["mode"] = "read"
        optional = {"owner": owner, "label": label, "slots": slots, "reentrant": reentrant or None}
        body.update({field: value for field, value in optional.items() if value is not None})
        path = f"/v1/locks/{quote(name, safe='')}"
        until = now() + (LONGEST_WAIT if wait is None else wait) + EXTRA_WAIT
        key = secrets.token_hex(16)
        for attempt in range(TRIES):
            sent = now()
            try:
                answer = self._daemon.call("POST", path, body, max(0.001, until - sent), key)
                return Hold(self._daemon, answer, sent, ttl)
            except (OSError, http.client.HTTPException) as error:
                is_away = isinstance(error, (ConnectionRefusedError, FileNotFoundError))
                if is_away or attempt + 1 == TRIES or now() >= until:
                    message = f"the daemon at {self._daemon.address} does not answer: {error!r}"
                    raise DistlockError("unavailable", message) from error
        raise AssertionError("unreachable")

    def locks(self, prefix: str = "") -> list[dict[str, Any]]:
        """Returns the locks whose names begin with `prefix`, as `distlock ls --json` prints them."""
        answer = self._daemon.ask("GET", f"/v1/locks?prefix={quote(prefix, safe='')}", None, EXTRA_WAIT)
        return list(answer["locks"])

    def show(self, name: str) -> dict[str, Any]:
        """Returns one lock, as `distlock show --json` prints it."""
        return self._daemon.ask("GET", f"/v1/locks/{quote(name, safe='')}", None, EXTRA_WAIT)
