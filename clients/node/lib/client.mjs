// A client of one daemon.

import { randomBytes } from "node:crypto";

import { now } from "./clock.mjs";
import { Daemon } from "./daemon.mjs";
import { DistlockError } from "./errors.mjs";
import { Hold } from "./hold.mjs";

/** How often a request for a lock is sent when its connection breaks: with the same key it is the same attempt. */
const TRIES = 3;
/** How long the daemon waits without a limit of the caller. */
const LONGEST_WAIT_MS = 86_400_000;
/** How much longer than the wait itself an answer may take. */
const EXTRA_WAIT_MS = 30_000;
/** The longest silence that the daemon accepts. */
const LONGEST_SILENCE_MS = 3_600_000;

const span = (ms) => `${Math.round(ms)}ms`;

/** A client of one daemon. */
export class Client {
  #daemon;

  constructor(options = {}) {
    this.#daemon = new Daemon(options);
  }

  async lock(name, { waitMs, ttlMs = 10_000, owner, label, shared, slots, reentrant, signal } = {}) {
    const body = { ttl: span(ttlMs), silence: span(Math.min(ttlMs, LONGEST_SILENCE_MS)), owner, label, slots, reentrant };
    if (waitMs !== undefined) body.wait = span(waitMs);
    if (shared) body.mode = "read";
    const until = now() + (waitMs ?? LONGEST_WAIT_MS) + EXTRA_WAIT_MS;
    const [path, key] = [`/v1/locks/${encodeURIComponent(name)}`, randomBytes(16).toString("hex")];
    for (let left = TRIES - 1; ; left--) {
      const sent = now();
      try {
        const timeoutMs = Math.max(1, until - sent);
        const answer = await this.#daemon.call("POST", path, { body, key, timeoutMs, signal });
        return await Hold.of(this.#daemon, answer, sent, ttlMs);
      } catch (error) {
        if (error instanceof DistlockError || signal?.aborted) throw error;
        if (left === 0 || now() >= until || ["ECONNREFUSED", "ENOENT"].includes(error.code)) {
          const message = `the daemon at ${this.#daemon.address} does not answer: ${error.message}`;
          throw new DistlockError("unavailable", message, { cause: error });
        }
      }
    }
  }

  async locks(prefix = "") {
    const path = `/v1/locks?prefix=${encodeURIComponent(prefix)}`;
    return (await this.#daemon.ask("GET", path, { timeoutMs: EXTRA_WAIT_MS })).locks;
  }

  show(name) {
    return this.#daemon.ask("GET", `/v1/locks/${encodeURIComponent(name)}`, { timeoutMs: EXTRA_WAIT_MS });
  }
}

let defaultClient;

/** Acquires a lock from the default daemon. */
export function lock(name, options) {
  defaultClient ??= new Client();
  return defaultClient.lock(name, options);
}
