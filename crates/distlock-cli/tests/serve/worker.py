"""The test program: worker.py COMMAND ADDRESS ..."""

import http.server
import json
import os
import signal
import socket
import sys
import threading
import time

import distlock


def say(*words):
    print(*words, flush=True)


def hold(client, name, ttl):
    """Holds a lock, and writes down when `check` passed for the last time."""
    held = client.lock(name, ttl=float(ttl))
    last_good = 0.0
    try:
        while True:
            before = time.time()
            held.check()
            if not last_good:
                say("held", held.token)
            last_good = before
            time.sleep(0.001)
    except distlock.Lost as error:
        assert held.lost.wait(1), "the event is set"
        say("lost", repr(last_good), error.reason)


def basics(client, name):
    """What the documentation promises, in one process."""
    with client.lock(name, wait=5, label="basics") as held:
        held.check()
        assert held.remaining > 0 and not held.lost.is_set()
        assert client.show(name)["holder"]["label"] == "basics"
        assert [lock["name"] for lock in client.locks(name)] == [name]
        try:
            client.lock(name, wait=0)
            raise AssertionError("two holders")
        except distlock.NotAcquired as error:
            assert error.kind == "timeout" and error.holder["label"] == "basics", error
        first = held.token
        pid = os.fork()
        if pid == 0:
            os._exit(0 if held.is_lost else 1)
        assert os.waitpid(pid, 0)[1] == 0, "a forked child does not hold it"
        held.extend(20)
        held.check()
    with client.lock(name, wait=5) as held:
        assert held.token > first, "tokens rise"
    for bad in ("", "a\nb", "x" * 600):
        try:
            client.lock(bad)
            raise AssertionError(bad)
        except distlock.DistlockError as error:
            assert error.kind in ("invalid_input",), error
    say("good")


def released(client, name):
    """Two releases are one, and a lost lock cannot be released."""
    held = client.lock(name, wait=5)
    held.release()
    held.release()
    say("good")


def readers(client, name):
    with client.lock(name, shared=True, wait=5), client.lock(name, shared=True, wait=5):
        pass
    with client.lock(name + ":slots", slots=2, wait=5) as one, client.lock(name + ":slots", slots=2, wait=5) as two:
        assert {one.slot, two.slot} == {0, 1}, (one.slot, two.slot)
    with client.lock(name, owner="me", reentrant=True, wait=5) as one:
        with client.lock(name, owner="me", reentrant=True, wait=5) as two:
            assert one.token == two.token
    say("good")


def patiently(action):
    """Tries again when a busy machine has made the engine's answer late: it is not what is tested here."""
    for _ in range(20):
        try:
            return action()
        except distlock.DistlockError as error:
            if error.kind not in ("unknown", "unavailable"):
                raise
    raise AssertionError("no answer twenty times")


def count(client, name, path, processes, times):
    """Many processes increment a counter in a file."""
    children = []
    for _ in range(int(processes)):
        pid = os.fork()
        if pid == 0:
            try:
                for _ in range(int(times)):
                    held = patiently(lambda: client.lock(name, wait=120, ttl=30))
                    with open(path) as file:
                        number, token = map(int, file.read().split())
                    assert held.token > token, "tokens rise"
                    held.check()
                    with open(path, "w") as file:
                        file.write(f"{number + 1} {held.token}")
                    patiently(held.release)
                os._exit(0)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
        children.append(pid)
    failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in children)
    assert failed == 0, failed
    say("good")


def secret(client):
    """Errors do not have the token, which is in the address."""
    client = distlock.Client("http://127.0.0.1:1/#token=sesame-sesame-sesame")
    for action in (lambda: client.lock("a", wait=0), client.locks, lambda: client.show("a")):
        try:
            action()
            raise AssertionError("nothing listens there")
        except distlock.DistlockError as error:
            assert "127.0.0.1:1" in str(error) and "sesame" not in repr(error), error
    say("good")


class Nonsense(http.server.BaseHTTPRequestHandler):
    """Grants a lock and says nothing of sense about it afterwards."""

    def do_POST(self):
        grant = {"id": "1", "name": "a", "token": "7", "lease": True, "left_ms": 3000, "took_ms": 0}
        answer = json.dumps(grant) if "locks" in self.path else "<html>"
        self.send(answer.encode())

    def do_GET(self):
        self.send(b"event: held\ndata: <html>\n\n")

    def send(self, body):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


def nonsense(client):
    """The lock is lost at its deadline, whatever else goes wrong."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Nonsense)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    held = distlock.Client(f"http://127.0.0.1:{server.server_port}").lock("a")
    assert held.lost.wait(30), "the event is set"
    say("good")


def unanswered(client):
    """The wait bounds all tries together."""
    import distlock._client

    distlock._client.EXTRA_WAIT = 1.0
    listener = socket.create_server(("127.0.0.1", 0))
    try:
        distlock.Client(f"http://127.0.0.1:{listener.getsockname()[1]}").lock("a", wait=0)
        raise AssertionError("nothing answers")
    except distlock.DistlockError as error:
        assert error.kind == "unavailable", error
    listener.setblocking(False)
    listener.accept()
    try:
        listener.accept()
        raise AssertionError("it waited again")
    except BlockingIOError:
        say("good")


def suspended(client, name):
    """The clock leaps: the event is set long before the timers that were set before."""
    import distlock._hold

    held = client.lock(name, ttl=3000)
    while held._stream is None:
        time.sleep(0.01)
    time.sleep(0.5)  # Until the thread sleeps; if it does not yet, it need not wake up.
    clock = distlock._hold.now
    distlock._hold.now = lambda: clock() + 4000
    assert held.lost.wait(30), "the event is set"
    say("good")


def forked(client, name):
    """A child does not wait for what a thread of its parent had."""
    held = client.lock(name, ttl=60)
    with held._lock:
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            held.release()
            os._exit(0 if held.is_lost else 1)
        assert os.waitpid(pid, 0)[1] == 0, "the child ends"
    held.release()
    say("good")


def impostor(client):
    """Another user made the directory in which the daemon is by default."""
    uid = 1_000_000_000 + os.getpid()
    os.geteuid = lambda: uid
    directory = f"/tmp/distlock-{uid}"
    os.mkdir(directory)
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"{directory}/serve.sock")
        distlock.Client()
        raise AssertionError("it trusts another user")
    except distlock.DistlockError as error:
        assert error.kind == "auth" and directory in str(error), error
        say("good")
    finally:
        os.unlink(f"{directory}/serve.sock")
        os.rmdir(directory)


def main():
    command, *words = sys.argv[1:]
    client = None
    if words:
        client = distlock.Client(words.pop(0), token=os.environ.get("SERVE_TOKEN"), cafile=os.environ.get("SERVE_CA"))
    globals()[command](client, *words)


main()
