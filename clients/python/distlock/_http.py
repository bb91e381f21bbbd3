"""Requests to the daemon: one connection each."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import stat
from typing import Any, Optional
from urllib.parse import urlsplit

from ._errors import DistlockError, Lost, NotAcquired


def default_address() -> str:
    """Returns `DISTLOCK_SERVE`, else the socket that `distlock serve` chooses by itself."""
    chosen = os.environ.get("DISTLOCK_SERVE")
    if chosen:
        return chosen
    directory = os.environ.get("DISTLOCK_LOCK_DIR")
    if directory:
        return os.path.join(directory, "serve.sock")
    uid = os.geteuid()
    sockets = [os.path.join(directory, "serve.sock") for directory in (f"/run/distlock/{uid}", f"/tmp/distlock-{uid}")]
    path = next((path for path in sockets if os.path.exists(path)), sockets[-1])
    _check_owner(os.path.dirname(path), uid)
    return path


def _check_owner(directory: str, uid: int) -> None:
    """Refuses a directory that another user has made where every user can make one: a daemon there is not ours."""
    try:
        found = os.lstat(directory)
    except OSError:
        return  # No daemon is there; connecting says so.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
        message = f"{directory} is not a directory of uid {uid}: its owner could answer as the daemon"
        raise DistlockError("auth", message)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: Optional[float]) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(self.timeout)
            self.sock.connect(self._path)
        except BaseException:
            self.sock.close()
            raise


class Daemon:
    """Where the daemon is: the path of a unix socket, or a URL such as `http://127.0.0.1:7412/#token=...`."""

    def __init__(self, address: str, token: Optional[str], cafile: Optional[str]) -> None:
        self._url = urlsplit(address) if address.startswith(("http://", "https://")) else None
        self._path = address
        # Error messages have it: without the token.
        self.address = f"{self._url.scheme}://{self._url.netloc.rpartition('@')[2]}" if self._url else address
        fragment = self._url.fragment if self._url else ""
        self._token = token or (fragment[len("token="):] if fragment.startswith("token=") else None)
        self._cafile = cafile
        self.host = (self._url.netloc.rpartition("@")[2] if self._url else "") or "localhost"

    def connect(self, timeout: Optional[float]) -> http.client.HTTPConnection:
        if self._url is None:
            return _UnixConnection(self._path, timeout)
        host, port = self._url.hostname or "localhost", self._url.port
        if self._url.scheme == "https":
            context = ssl.create_default_context(cafile=self._cafile)
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        return http.client.HTTPConnection(host, port, timeout=timeout)

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def call(
        self, method: str, path: str, body: Optional[dict[str, Any]], timeout: Optional[float], key: Optional[str] = None
    ) -> dict[str, Any]:
        """Sends a request and returns the answer.

        Raises `OSError` or `http.client.HTTPException` when there is no answer that makes sense: whether the request was
        applied is unknown.
        """
        headers = self.headers()
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = json.dumps(body)
        if key is not None:
            headers["Idempotency-Key"] = key
        headers["Connection"] = "close"
        connection = self.connect(timeout)
        try:
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        if response.status >= 300:
            raise failure(response.status, text)
        try:
            answer = json.loads(text) if text else {}
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise http.client.HTTPException(f"the answer is not a JSON object: {text[:200]!r}")
        return answer

    def ask(self, method: str, path: str, body: Optional[dict[str, Any]], timeout: float) -> dict[str, Any]:
        """Sends a request and returns the answer; every failure is a `DistlockError`."""
        try:
            return self.call(method, path, body, timeout)
        except (OSError, http.client.HTTPException) as error:
            raise DistlockError("unknown", f"the daemon at {self.address} does not answer: {error!r}") from error


def failure(status: int, text: bytes) -> DistlockError:
    """Returns the error of an answer."""
    try:
        error = json.loads(text)["error"]
        kind, message = str(error["kind"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return DistlockError("backend", f"the daemon answered {status}: {text[:200]!r}")
    if status == 423:
        return NotAcquired(message, error.get("holder"))
    if status == 410:
        lost = Lost("", str(error.get("reason") or "expired"))
        lost.args = (message,)
        return lost
    return DistlockError(kind, message)
