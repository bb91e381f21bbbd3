// Requests to the daemon: one connection each.

import { existsSync } from "node:fs";
import http from "node:http";
import https from "node:https";

import { DistlockError, Lost, NotAcquired } from "./errors.mjs";

/** Returns `DISTLOCK_SERVE`, else the socket that `distlock serve` chooses by itself. */
function defaultAddress() {
  if (process.env.DISTLOCK_SERVE) return process.env.DISTLOCK_SERVE;
  const uid = process.geteuid();
  const chosen = process.env.DISTLOCK_LOCK_DIR;
  const directories = chosen ? [chosen] : [`/run/distlock/${uid}`, `/tmp/distlock-${uid}`];
  const sockets = directories.map((directory) => `${directory}/serve.sock`);
  return sockets.find((path) => existsSync(path)) ?? sockets.at(-1);
}

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
    this.#send = url.protocol === "https:" ? https.request : http.request;
    this.#place = { host: url.hostname.replace(/^\[|\]$/g, ""), port: url.port, ca };
    token ??= url.hash.startsWith("#token=") ? url.hash.slice("#token=".length) : undefined;
    if (token) this.#headers.authorization = `Bearer ${token}`;
  }

  /** Opens a request. A connection that it uses keeps the process running. */
  open(method, path, headers = {}) {
    return this.#send({ ...this.#place, method, path, agent: false, headers: { ...this.#headers, ...headers } });
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
      const limit = timeoutMs && setTimeout(() => request.destroy(new Error("no answer in time")), timeoutMs);
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
          if (response.statusCode < 300) finish(resolve, text ? JSON.parse(text) : {});
          else finish(reject, failure(response.statusCode, text));
        });
      });
      if (signal?.aborted) return withdraw();
      request.end(body && JSON.stringify(body));
    });
  }
}

function failure(status, text) {
  let error;
  try {
    ({ error } = JSON.parse(text));
  } catch {
    error = undefined;
  }
  if (!error?.kind) return new DistlockError("backend", `the daemon answered ${status}: ${text.slice(0, 200)}`);
  if (status === 423) return new NotAcquired(error.message, error.holder);
  if (status === 410) return new Lost(error.message, error.reason ?? "expired");
  return new DistlockError(error.kind, error.message);
}
