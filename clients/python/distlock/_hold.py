"""A held lock."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
from types import TracebackType
from typing import Any, Callable, Optional, Type

from ._clock import CLOCK_DRIFT, now
from ._errors import DistlockError, Lost
from ._http import Daemon

LONG_ANSWER = 1.0
"""An answer that took longer than this many seconds is followed by a request that is answered at once: what is left of the
lease is counted from before a request."""

RELEASE_LIMIT = 30.0

LONGEST_NAP = 0.5
"""The longest sleep in seconds before the clock is read again: sleeps stop while the machine is suspended, the clock does not."""


class Hold:
    """A held lock; a context manager that releases it.

    The deadline moves only with an answer of the daemon, and is counted from before the request: an answer that is late, a
    daemon that was stopped and an event stream that is delayed never make it later than the lease. A forked child does not
    hold the lock.
    """

    def __init__(self, daemon: Daemon, answer: dict[str, Any], sent: float, ttl: float) -> None:
        self._daemon = daemon
        self._pid = os.getpid()
        self._id = str(answer["id"])
        self._ttl = ttl
        self._has_lease = bool(answer["lease"])
        self._lock = threading.Lock()
        self._deadline = 0.0
        self._round_trip = 0.0
        self._reason: Optional[str] = None
        self._is_released = False
        self._stream: Optional[socket.socket] = None
        self.name = str(answer["name"])
        self.token = int(answer["token"])
        """The fencing token: the resource refuses a lower one than it has seen."""
        self.slot: Optional[int] = answer.get("slot")
        self.lost = threading.Event()
        """Set when the lock is lost."""
        self.asked = threading.Event()
        """Set when another client asks for the lock (`distlock ask`)."""
        self.on_lost: Optional[Callable[[str], None]] = None
        """Called once with the reason when the lock is lost, on the thread that notices it."""
        self._move(answer, sent)
        if answer["took_ms"] / 1000 > LONG_ANSWER:
            self._prove_life(self._ttl)
        self._thread = threading.Thread(target=self._watch, name=f"distlock {self.name}", daemon=True)
        self._thread.start()

    @property
    def remaining(self) -> float:
        """The seconds until the lock counts as lost unless the lease is renewed; 0 if it is lost."""
        return 0.0 if self.is_lost else max(0.0, self._deadline - now())

    @property
    def is_lost(self) -> bool:
        """Whether the lock is lost, by the clock at this moment, or released."""
        # In a forked child first: another thread of the parent may have had the lock below, for ever.
        if self._is_released or os.getpid() != self._pid:
            return True
        if self._reason is None and now() >= self._deadline:
            self._lose("expired")
        return self._reason is not None

    def check(self) -> None:
        """Raises `Lost` if the lock is lost. Call it before each step that must not happen without the lock."""
        if self.is_lost:
            is_ours = os.getpid() == self._pid
            raise Lost(self.name, self._reason or ("released" if is_ours else "it belongs to the parent process"))

    def extend(self, ttl: float) -> None:
        """Sets the lease to `ttl` seconds and renews it at once."""
        self.check()
        sent = now()
        body = {"ttl": f"{round(ttl * 1000)}ms"}
        self._move(self._daemon.ask("POST", f"/v1/holds/{self._id}/extend", body, self._left()), sent)

    def release(self) -> None:
        """Releases the lock and confirms it. Raises `Lost` if it was lost before."""
        if os.getpid() != self._pid:
            self._is_released = True
            return
        was_lost = self.is_lost
        with self._lock:
            if self._is_released:
                return
            self._is_released = True
        self._wake()
        try:
            self._call("DELETE", "", None, RELEASE_LIMIT)
        except DistlockError as error:
            if was_lost or error.kind in ("lost", "not_held"):
                self._lose("expired")
                raise Lost(self.name, self._reason or "expired") from None
            raise
        except (OSError, http.client.HTTPException) as error:
            message = f"lock {self.name!r}: the release was not confirmed; it ends with its lease: {error!r}"
            raise DistlockError("unknown", message) from error
        if was_lost:
            raise Lost(self.name, self._reason or "expired")

    def __enter__(self) -> "Hold":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            self.release()
        except DistlockError:
            # The error of the block says more.
            if error is None:
                raise

    def __repr__(self) -> str:
        return f"<distlock.Hold {self.name!r} token {self.token}>"

    def _left(self) -> float:
        """The seconds that a request about this hold may take: an answer after the deadline is of no use."""
        return max(0.001, self._deadline - now())

    def _call(self, method: str, path: str, body: Optional[dict[str, Any]], timeout: float) -> dict[str, Any]:
        return self._daemon.call(method, f"/v1/holds/{self._id}{path}", body, timeout)

    def _move(self, answer: dict[str, Any], sent: float) -> None:
        """Moves the deadline, counted from before the request."""
        try:
            took, left = answer["took_ms"] / 1000, answer["left_ms"] / 1000
        except (KeyError, TypeError) as error:
            raise http.client.HTTPException(f"the answer is not about a hold: {answer!r}") from error
        with self._lock:
            self._deadline = max(self._deadline, sent + (took + left) * (1 - CLOCK_DRIFT))
            self._round_trip = max(0.0, now() - sent - took)

    def _lose(self, reason: str) -> None:
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
        self.lost.set()
        if self.on_lost is not None:
            self.on_lost(reason)

    def _prove_life(self, timeout: float) -> bool:
        """Shows the daemon that this process lives, and moves the deadline. Returns whether the lock is still held."""
        sent = now()
        try:
            self._move(self._call("POST", "/alive", None, timeout), sent)
        except DistlockError as error:
            if self._is_released:
                return False
            if isinstance(error, Lost):
                self._lose(error.reason)
            elif error.kind == "not_held":
                self._lose("silent")
        except (OSError, http.client.HTTPException):
            pass  # Unknown is not lost: tried again until the deadline.
        return not self.is_lost

    def _watch(self) -> None:
        """Listens to the event stream and shows life, until the lock is released or lost."""
        stream: Optional[_Stream] = None
        next_sign = self._next_sign()
        while not self._is_released and not self.is_lost:
            if now() >= next_sign:
                if not self._prove_life(self._left()):
                    break
                next_sign = self._next_sign()
            try:
                stream = stream or self._open_stream()
                if not self._hear(stream, min(next_sign, self._deadline)):
                    break
            except (OSError, http.client.HTTPException):
                stream = self._disconnected()
                if self._is_released or self.lost.wait(min(0.05, self._left())):
                    break
        self._close_stream()
        if not self._is_released and self.is_lost:
            self._confirm()

    def _next_sign(self) -> float:
        # Sooner after a failure or over a slow network: there is time for several tries.
        return now() + min(self._ttl / 3, 60.0, max(0.0, self._left() / 3 - self._round_trip))

    def _hear(self, stream: "_Stream", until: float) -> bool:
        """Handles events until a moment. Returns whether the lock is still held."""
        while event := stream.event(until):
            name, data = event
            if name == "lost":
                self._lose(str(data.get("reason")))
                return False
            if name == "asked":
                self.asked.set()
        return True

    def _disconnected(self) -> None:
        self._close_stream()
        # Without a lease that outlives the daemon, the lock is free when the daemon is gone.
        if not self._has_lease and not self._is_released:
            self._lose("the daemon is gone")

    def _open_stream(self) -> "_Stream":
        stream = _Stream(self._daemon, f"/v1/holds/{self._id}/events", self._left())
        with self._lock:
            self._stream = stream.socket
        if self._is_released:
            raise OSError("released meanwhile")
        return stream

    def _close_stream(self) -> None:
        """Closes the stream, on the thread that reads it: another socket could get its number while it is read."""
        with self._lock:
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _wake(self) -> None:
        """Ends the reading of the stream, from any thread."""
        with self._lock:
            if self._stream is not None:
                try:
                    # Not the method of an encrypted socket, which would change what the other thread uses.
                    socket.socket.shutdown(self._stream, socket.SHUT_RDWR)
                except OSError:
                    pass  # The other side was faster.

    def _confirm(self) -> None:
        """Tells the daemon that the work has been told to stop, so that it need not wait for the deadline."""
        try:
            self._call("DELETE", "", None, 1.0)
        except (DistlockError, OSError, http.client.HTTPException):
            pass  # The lease ends it.


class _Stream:
    """The event stream of a hold."""

    def __init__(self, daemon: Daemon, path: str, timeout: float) -> None:
        connection = daemon.connect(timeout)
        connection.connect()
        self.socket: socket.socket = connection.sock
        self._text = b""
        headers = {**daemon.headers(), "Host": daemon.host, "Accept": "text/event-stream"}
        lines = [f"GET {path} HTTP/1.0", *(f"{name}: {value}" for name, value in headers.items())]
        try:
            # Version 1.0: the answer is the events alone, without chunks between them.
            self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
            head = self._read_until(b"\r\n\r\n", now() + timeout)
            if head is None or b" 200 " not in head.split(b"\r\n")[0]:
                raise OSError(f"the event stream was refused: {head!r}")
        except BaseException:
            self.socket.close()
            raise

    def event(self, until: float) -> "Optional[tuple[str, dict[str, Any]]]":
        """Returns the next event, or `None` if there is none until a moment. Raises `OSError` at the end of the stream."""
        block = self._read_until(b"\n\n", until)
        return None if block is None else _parse(block)

    def _read_until(self, mark: bytes, until: float) -> Optional[bytes]:
        while mark not in self._text:
            left = until - now()
            if left <= 0:
                return None
            self.socket.settimeout(min(left, LONGEST_NAP))
            try:
                piece = self.socket.recv(4096)
            except socket.timeout:  # Before Python 3.10 this is no `TimeoutError`.
                continue
            if not piece:
                raise OSError("the event stream has ended")
            self._text += piece
        block, _, self._text = self._text.partition(mark)
        return block


def _parse(block: bytes) -> "tuple[str, dict[str, Any]]":
    name, data = "", "{}"
    for line in block.decode("utf-8", "replace").split("\n"):
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            data = value
    try:
        return name, dict(json.loads(data))
    except (TypeError, ValueError) as error:
        raise OSError(f"the event stream is broken: {block[:200]!r}") from error
