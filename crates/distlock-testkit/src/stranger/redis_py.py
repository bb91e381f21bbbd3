# Executes orders with redis-py's Lock: one order per line, one answer per line. Arguments: host, port.
import sys
import time

import redis
from redis.exceptions import LockError

server = redis.Redis(host=sys.argv[1], port=int(sys.argv[2]))
locks = {}


def take(key, ttl_ms, wait):
    timeout = int(ttl_ms) / 1000 or None
    lock = server.lock(key, timeout=timeout, sleep=0.02)
    if not lock.acquire(blocking=wait):
        return "busy"
    locks[key] = lock
    return "held"


def attempt(change):
    try:
        change()
        return "done"
    except LockError:
        return "not ours"


def meet(key, times):
    for _ in range(int(times)):
        lock = server.lock(key, timeout=30, sleep=0.005)
        lock.acquire()
        if server.incr(key + ":inside") != 1:
            return "two holders"
        time.sleep(0.001)
        server.decr(key + ":inside")
        lock.release()
    return "done"


ORDERS = {
    "try": lambda key, ttl_ms: take(key, ttl_ms, False),
    "lock": lambda key, ttl_ms: take(key, ttl_ms, True),
    "extend": lambda key, ttl_ms: attempt(lambda: locks[key].extend(int(ttl_ms) / 1000, replace_ttl=True)),
    "unlock": lambda key: attempt(locks[key].release),
    "meet": meet,
}

for line in sys.stdin:
    order, *words = line.split()
    print(ORDERS[order](*words), flush=True)
