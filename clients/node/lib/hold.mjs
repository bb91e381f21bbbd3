// A held lock.

import { CLOCK_DRIFT, now } from "./clock.mjs";
import { parse } from "./daemon.mjs";
import { DistlockError, Lost } from "./errors.mjs";

/**
 * An answer that took longer is followed by a request that is answered at once: what is left of the lease is counted from
 * before a request.
 */
const LONG_ANSWER_MS = 1000;
const RELEASE_LIMIT_MS = 30_000;
const RECONNECT_MS = 50;
/** The longest time before the clock is read again: timers stop while the machine is suspended, the clock does not. */
const LONGEST_NAP_MS = 500;

/**
 * A held lock.
 *
 * The deadline moves only with an answer of the daemon, and is counted from before the request: an answer that is late, a
 * daemon that was stopped and an event stream that is delayed never make it later than the lease.
 */
export class Hold {
  #daemon;
  #id;
  #ttlMs;
  #hasLease;
  #deadline = 0;
  #roundTrip = 0;
  #reason;
  #isReleased = false;
  #abort = new AbortController();
  #stream;
  #timers = new Map();
  #askedListeners = [];

  /** Returns the hold of an answer to a request that was sent at `sent`. */
  static async of(daemon, answer, sent, ttlMs) {
    const hold = new Hold(daemon, answer, ttlMs);
    hold.#move(answer, sent);
    if (answer.took_ms > LONG_ANSWER_MS) await hold.#proveLife(ttlMs);
    hold.#watch();
    return hold;
  }

  constructor(daemon, answer, ttlMs) {
    this.#daemon = daemon;
    this.#id = answer.id;
    this.#ttlMs = ttlMs;
    this.#hasLease = answer.lease;
    this.name = answer.name;
    this.token = BigInt(answer.token);
    this.slot = answer.slot;
  }

  /** Aborted, with `Lost` as its reason, when the lock is lost. */
  get signal() {
    return this.#abort.signal;
  }

  /** Whether the lock is lost, by the clock at this moment, or released. */
  get isLost() {
    if (this.#isReleased) return true;
    if (this.#reason === undefined && now() >= this.#deadline) this.#lose("expired");
    return this.#reason !== undefined;
  }

  get remainingMs() {
    return this.isLost ? 0 : Math.max(0, this.#deadline - now());
  }

  /** Throws `Lost` if the lock is lost. */
  check() {
    if (this.isLost) throw this.#loss();
  }

  onAsked(listener) {
    this.#askedListeners.push(listener);
  }

  async extend(ttlMs) {
    this.check();
    const sent = now();
    const body = { ttl: `${Math.round(ttlMs)}ms` };
    this.#move(await this.#daemon.ask("POST", `/v1/holds/${this.#id}/extend`, { body, timeoutMs: this.#left() }), sent);
    this.#watchDeadline();
  }

  async release() {
    if (this.#isReleased) return;
    const wasLost = this.isLost;
    this.#isReleased = true;
    this.#stop();
    try {
      await this.#call("DELETE", "", { timeoutMs: RELEASE_LIMIT_MS });
    } catch (error) {
      if (!(error instanceof DistlockError)) {
        const message = `lock ${this.name}: the release was not confirmed; it ends with its lease: ${error.message}`;
        throw new DistlockError("unknown", message, { cause: error });
      }
      if (!wasLost && !["lost", "not_held"].includes(error.kind)) throw error;
      this.#lose("expired");
      throw this.#loss();
    }
    if (wasLost) throw this.#loss();
  }

  async [Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose")]() {
    await this.release();
  }

  #call(method, path, options) {
    return this.#daemon.call(method, `/v1/holds/${this.#id}${path}`, options);
  }

  /** The time that a request about this hold may take: an answer after the deadline is of no use. */
  #left() {
    return Math.max(1, this.#deadline - now());
  }

  /** Moves the deadline, counted from before the request. */
  #move(answer, sent) {
    if (!Number.isFinite(answer.took_ms + answer.left_ms)) throw new Error("the answer is not about a hold");
    this.#deadline = Math.max(this.#deadline, sent + (answer.took_ms + answer.left_ms) * (1 - CLOCK_DRIFT));
    this.#roundTrip = Math.max(0, now() - sent - answer.took_ms);
  }

  #loss() {
    const reason = this.#reason ?? "released";
    return new Lost(`lock ${this.name} was lost: ${reason}`, reason);
  }

  #lose(reason) {
    if (this.#reason !== undefined) return;
    this.#reason = reason;
    this.#stop();
    this.#abort.abort(this.#loss());
    // Tells the daemon that the work has been told to stop, so that it need not wait for the deadline.
    if (!this.#isReleased) this.#call("DELETE", "", { timeoutMs: 1000 }).catch(() => {});
  }

  #stop() {
    for (const timer of this.#timers.values()) clearTimeout(timer);
    this.#timers.clear();
    this.#stream?.destroy();
    this.#stream = undefined;
  }

  /** Runs `action` at a moment, unless it is set again before. It does not keep the process running. */
  #at(name, moment, action) {
    clearTimeout(this.#timers.get(name));
    if (this.#isReleased || this.#reason !== undefined) return;
    const left = Math.max(0, moment - now());
    const timer = setTimeout(() => {
      if (now() < moment) this.#at(name, moment, action);
      else action();
    }, Math.min(left, LONGEST_NAP_MS));
    timer.unref();
    this.#timers.set(name, timer);
  }

  #watch() {
    this.#watchDeadline();
    this.#signLater();
    this.#listen();
  }

  #watchDeadline() {
    this.#at("deadline", this.#deadline, () => this.isLost || this.#watchDeadline());
  }

  #signLater() {
    // Sooner after a failure or over a slow network: there is time for several tries.
    const pause = Math.min(this.#ttlMs / 3, 60_000, Math.max(0, this.#left() / 3 - this.#roundTrip));
    this.#at("sign", now() + pause, async () => {
      await this.#proveLife(this.#left());
      this.#watchDeadline();
      this.#signLater();
    });
  }

  /** Shows the daemon that this process lives, and moves the deadline. */
  async #proveLife(timeoutMs) {
    const sent = now();
    try {
      this.#move(await this.#call("POST", "/alive", { timeoutMs }), sent);
    } catch (error) {
      if (this.#isReleased) return;
      if (error instanceof Lost) this.#lose(error.reason);
      else if (error.kind === "not_held") this.#lose("silent");
      // Unknown is not lost: tried again until the deadline.
    }
  }

  #listen() {
    if (this.#isReleased || this.#reason !== undefined) return;
    const request = this.#daemon.open("GET", `/v1/holds/${this.#id}/events`, { accept: "text/event-stream" });
    this.#stream = request;
    let isOver = false;
    const over = () => {
      if (isOver || this.#stream !== request) return;
      isOver = true;
      // Without a lease that outlives the daemon, the lock is free when the daemon is gone.
      if (!this.#hasLease) this.#lose("the daemon is gone");
      this.#at("stream", now() + RECONNECT_MS, () => this.#listen());
    };
    request.on("socket", (socket) => socket.unref());
    request.on("error", over);
    request.on("close", over);
    request.on("response", (response) => {
      if (response.statusCode !== 200) return request.destroy();
      let text = "";
      response.setEncoding("utf8");
      response.on("error", over);
      response.on("data", (piece) => {
        const blocks = (text + piece).split("\n\n");
        text = blocks.pop();
        blocks.forEach((block) => this.#hear(block));
      });
    });
    request.end();
  }

  #hear(block) {
    const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s, 2)));
    const data = parse(fields.data) ?? {};
    if (fields.event === "lost") this.#lose(data.reason ?? "unknown");
    if (fields.event === "asked") this.#askedListeners.forEach((listener) => listener(data.reason));
  }
}
