"""Distributed locks through the distlock daemon (`distlock serve`).

    import distlock

    with distlock.lock("invoice:42", wait=5) as hold:
        charge(hold.token)
        hold.check()  # raises Lost if the lock may belong to somebody else

A hold is renewed while this process lives. `hold.lost` is a `threading.Event` that is set when the lock is lost, before
another owner can be granted it.
"""

from ._client import Client
from ._clock import now
from ._errors import DistlockError, Lost, NotAcquired
from ._hold import Hold

__all__ = ["Client", "DistlockError", "Hold", "Lost", "NotAcquired", "lock", "now"]

_default: "Client | None" = None


def lock(name: str, **options: object) -> Hold:
    """Acquires a lock from the default daemon; see `Client.lock` for the options."""
    global _default
    if _default is None:
        _default = Client()
    return _default.lock(name, **options)  # type: ignore[arg-type]
