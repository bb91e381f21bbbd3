// Requests to the daemon: one connection each.

import { existsSync, lstatSync } from "node:fs";
import http from "node:http";
import https from "node:https";

import { DistlockError, Lost, NotAcquired } from "./errors.mjs";

/** Returns `DISTLOCK_SERVE`, else the socket that `distlock serve` chooses by itself. */
function defaultAddress() {
  if (process.env.DISTLOCK_SERVE) return process.env.DISTLOCK_SERVE;
  if (process.env.DISTLOCK_LOCK_DIR) return `${process.env.DISTLOCK_LOCK_DIR}/serve.sock`;
  const uid = process.geteuid();
  const directories = [`/run/distlock/${uid}`, `/tmp/distlock-${uid}`];
  const directory = directories.find((path) => existsSync(`${path}/serve.sock`)) ?? directories.at(-1);
  const found = lstatSync(directory, { throwIfNoEntry: false });
  // Every user can make a directory there: a daemon in another user's is not ours.
  if (found && (!found.isDirectory() || found.uid !== uid)) {
    const message = `${directory} is not a directory of uid ${uid}: its owner could answer as the daemon`;
    throw new DistlockError("auth", message);
  }
  return `${directory}/serve.sock`;
}

/** The longest time of a timer; a longer one would expire at once. */
export const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** Where the daemon is: the path of a unix socket, or a URL such as `http://127.0.0.1:7412/#token=…`. */
export class Daemon {
  #place;
  #send = http.request;
  #headers = {};

  constructor({ address = defaultAddress(), token, ca } = {}) {
    this.address = address;
    if (!/^https?:\/\//.test(address)) {
      this.#place = { socketPath: address, host: "localhost" };
      return;
    }
    const url = new URL(address);
    // Error messages have it: without the token.
    this.address = url.origin;
    this.#send = url.protocol === "https:" ? https.request : http.request;
    this.#place = { host: url.hostname.replace(/^\[|\]$/g, ""), port: url.port, ca };
    token ??= url.hash.startsWith("#token=") ? url.hash.slice("#token=".length) : undefined;
    if (token) this.#headers.authorization = `Bearer ${token}`;
  }

  /** Opens a request. A connection that it uses keeps the process running. */
  open(method, path, headers = {}) {
    return this.#send({ ...this.#place, method, path, agent: false, headers: { ...this.#headers, ...headers } });
  }

  /** Sends a request and returns the answer. Every failure is a `DistlockError`. */
  async ask(method, path, options) {
    try {
      return await this.call(method, path, options);
    } catch (error) {
      if (error instanceof DistlockError) throw error;
      const message = `the daemon at ${this.address} does not answer: ${error.message}`;
      throw new DistlockError("unknown", message, { cause: error });
    }
  }

  /**
   * Sends a request and returns the answer. Rejects with an error that is no `DistlockError` when there is no answer: whether
   * it was applied is unknown.
   */
  call(method, path, { body, key, timeoutMs, signal } = {}) {
    return new Promise((resolve, reject) => {
      const headers = key ? { "idempotency-key": key } : {};
      if (body) headers["content-type"] = "application/json";
      const request = this.open(method, path, headers);
      const tooLate = () => request.destroy(new Error("no answer in time"));
      const limit = setTimeout(tooLate, Math.min(timeoutMs, LONGEST_TIMER_MS));
      const withdraw = () => request.destroy(signal.reason);
      signal?.addEventListener("abort", withdraw);
      const finish = (settle, value) => {
        clearTimeout(limit);
        signal?.removeEventListener("abort", withdraw);
        settle(value);
      };
      request.on("error", (error) => finish(reject, error));
      request.on("response", (response) => {
        let text = "";
        response.setEncoding("utf8");
        response.on("data", (piece) => (text += piece));
        response.on("error", (error) => finish(reject, error));
        response.on("end", () => {
          if (response.statusCode >= 300) return finish(reject, failure(response.statusCode, text));
          const answer = text ? parse(text) : {};
          if (answer) finish(resolve, answer);
          else finish(reject, new Error(`the answer is not a JSON object: ${text.slice(0, 200)}`));
        });
      });
      if (signal?.aborted) return withdraw();
      request.end(body && JSON.stringify(body));
    });
  }
}

/** Returns the object of a text, or `undefined`: an exception in a listener of a socket would end the process. */
export function parse(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && value !== null ? value : undefined;
  } catch {
    return undefined;
  }
}

function failure(status, text) {
  const error = parse(text)?.error;
  if (!error?.kind) return new DistlockError("backend", `the daemon answered ${status}: ${text.slice(0, 200)}`);
  if (status === 423) return new NotAcquired(error.message, error.holder);
  if (status === 410) return new Lost(error.message, error.reason ?? "expired");
  return new DistlockError(error.kind, error.message);
}
