"""The worker for redis-py and python-redis-lock; src/worker.rs describes its protocol."""

import math
import os
import sys
import threading
import time

import redis
import redis_lock

WIDTH = math.log(1.02)


class RedisPy:
    """redis.lock.Lock with its default pause of 0.1 s between two attempts. It has no renewal of its own."""

    def __init__(self, client, ttl):
        self.client, self.ttl = client, ttl

    def lock(self, key):
        lock = self.client.lock(key, timeout=self.ttl)
        if not lock.acquire():
            raise RuntimeError("not acquired")
        return lock


class PythonRedisLock:
    """redis_lock.Lock, whose waiters block in BLPOP."""

    def __init__(self, client, ttl):
        self.client, self.ttl = client, ttl

    def lock(self, key, renews=False):
        lock = redis_lock.Lock(self.client, key, expire=int(self.ttl), auto_renewal=renews)
        if not lock.acquire():
            raise RuntimeError("not acquired")
        return lock


def say(*lines):
    print("\n".join(lines), flush=True)


def rss_kb():
    with open("/proc/self/status") as status:
        return next(line.split()[1] for line in status if line.startswith("VmRSS:"))


def changes(file, holder):
    """Writes the holder; returns whether it was another one before."""
    last = os.pread(file, 8, 0)
    os.pwrite(file, holder, 0)
    return len(last) == 8 and last != holder


def cycle(peer, key, file, number, begin, end, histogram):
    now = time.monotonic_ns
    holder = (os.getpid() << 20 | number).to_bytes(8, "little")
    while True:
        asked = now()
        lock = peer.lock(key)
        granted = now()
        is_handover = file is not None and changes(file, holder)
        lock.release()
        done = now()
        if done >= end:
            return
        if done >= begin:
            took = (done if file is None else granted) - asked
            histogram["handovers"] += is_handover
            bucket = int(math.log(max(took, 1)) / WIDTH)
            histogram[bucket] = histogram.get(bucket, 0) + 1


def cycles(peer, order, count, key):
    peer.lock(f"{key}:first:{os.getpid()}").release()
    say("ready")
    warm, measured = map(int, sys.stdin.readline().split()[1:])
    begin = time.monotonic_ns() + warm * 1_000_000
    end = begin + measured * 1_000_000
    histograms = [{"handovers": 0} for _ in range(count)]
    file = os.open(os.environ["DISTLOCK_PEERS_FILE"], os.O_RDWR | os.O_CREAT) if order == "shared" else None
    for number, histogram in enumerate(histograms):
        name = key if order == "shared" else f"{key}:{number}"
        arguments = (peer, name, file, number, begin, end, histogram)
        threading.Thread(target=cycle, args=arguments, daemon=True).start()
    time.sleep(max(begin - time.monotonic_ns(), 0) / 1e9)
    before = time.process_time_ns()
    time.sleep(max(end - time.monotonic_ns(), 0) / 1e9)
    cpu = (time.process_time_ns() - before) // 1_000
    # Threads that still wait for the lock get it too late to count.
    total = {}
    for histogram in histograms:
        for bucket, number in list(histogram.items()):
            total[bucket] = total.get(bucket, 0) + number
    handovers = total.pop("handovers")
    pairs = " ".join(f"{bucket}:{number}" for bucket, number in total.items())
    say(f"cpu_us {cpu}", f"rss_kb {rss_kb()}", f"handovers {handovers}", f"histogram {pairs}", "done")


def keep(peer, count, key):
    threading.stack_size(256 << 10)
    locks = [peer.lock(f"{key}:{number}:", renews=True) for number in range(count)]
    say("ready")
    while sys.stdin.readline().startswith("look"):
        say(f"cpu_us {time.process_time_ns() // 1_000}", f"rss_kb {rss_kb()}", "done")
    return locks


def main():
    contestant, order, count, key, ttl, servers = sys.argv[1:]
    host, port = servers.split(",")[0].split(":")
    client = redis.Redis(host, int(port), max_connections=1_000)
    peer = {"redis-py": RedisPy, "python-redis-lock": PythonRedisLock}[contestant](client, int(ttl) / 1_000)
    if order in ("own", "shared"):
        cycles(peer, order, int(count), key)
    elif order == "keep":
        keep(peer, int(count), key)
    elif order == "hold":
        peer.lock(key)
        say(f"held {time.monotonic_ns()}")
        time.sleep(3_600)
    elif order == "wait":
        say("ready")
        peer.lock(key)
        say(f"held {time.monotonic_ns()}")
    os._exit(0)


main()
