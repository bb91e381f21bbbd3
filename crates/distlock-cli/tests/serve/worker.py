"""The test program: worker.py COMMAND ADDRESS ..."""

import os
import sys
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


def main():
    command, address, *words = sys.argv[1:]
    token = os.environ.get("SERVE_TOKEN")
    client = distlock.Client(address, token=token, cafile=os.environ.get("SERVE_CA"))
    globals()[command](client, *words)


main()
