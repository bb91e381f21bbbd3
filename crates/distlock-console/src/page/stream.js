// The connection to the server: requests and the stream of events.

import { session } from "./session.js";

/** The pause before the stream is opened again: it doubles with each failure in a row. */
const FIRST_RETRY_MS = 1000;
const LONGEST_RETRY_MS = 30000;
/** An event arrives every five seconds, plus the ten that a listing may take; after a longer silence the connection is dead. */
const SILENCE_MS = 20000;
/** A hidden page disconnects after this time. */
const HIDDEN_MS = 30000;

/** Sends a request; a failure is an Error with the server's message. */
export async function ask(path, { method = "GET", body, token } = {}) {
  const headers = {};
  if (method !== "GET") headers["X-Distlock-Console"] = "1";
  if (body) headers["Content-Type"] = "application/json";
  const answer = await send(path, { method, headers, body: body && JSON.stringify(body) }, token);
  return answer.json();
}

/** Sends a request with the token and without cookies. */
async function send(path, { headers = {}, ...wish }, token = session.token) {
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(path, { ...wish, headers, cache: "no-store", credentials: "omit", redirect: "error" });
  if (answer.ok) return answer;
  const { error: said } = await answer.json();
  const error = new Error(said?.message ?? `status ${answer.status}`);
  throw Object.assign(error, { status: answer.status, kind: said?.kind, help: said?.help });
}

/** The server's clock, from the response with the shortest round trip. */
export const time = {
  offset: null,
  now() { return performance.now() + (this.offset ?? Date.now() - performance.now()); },
  learn(at) {
    const offset = at - performance.now();
    // Otherwise a clock that was set back would never be accepted again.
    if (this.offset === null || offset > this.offset || this.offset - offset > 5000) this.offset = offset;
  },
};

/** Reads events until the stream ends. An `EventSource` does the same, but cannot send the token in a header. */
async function read(path, signal, take) {
  const answer = await send(path, { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    let from = Math.max(0, text.length - 1);
    text += value;
    for (let end = text.indexOf("\n\n", from); end >= 0; end = text.indexOf("\n\n", from)) {
      const lines = text.slice(0, end).split("\n");
      [text, from] = [text.slice(end + 2), 0];
      const field = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      if (field("data") !== undefined) take(field("event"), JSON.parse(field("data")));
    }
  }
}

/**
 * Follows the events while the page is visible. `on` has a function for each kind of event, `down` and `denied`.
 * Returns a function that ends the stream.
 */
export function follow(on) {
  let stream = null;
  let heard = 0;
  let failures = 0;
  let away = null;
  let again = null;
  let isOver = false;

  async function open() {
    close();
    const mine = new AbortController();
    stream = mine;
    heard = performance.now();
    try {
      await read("/api/v1/events", mine.signal, take);
    } catch (error) {
      if (stream === mine && error.status === 401) {
        stop();
        return on.denied();
      }
    }
    // Unless the page closed it.
    if (stream === mine) retry();
  }

  function take(kind, data) {
    [heard, failures] = [performance.now(), 0];
    if (kind === "changes" || kind === "time") time.learn(data.at_ms);
    try {
      on[kind]?.(data);
    } catch (error) {
      // An event that cannot be shown is not a failure of the stream.
      reportError(error);
    }
  }

  function close() {
    clearTimeout(again);
    const open = stream;
    stream = null;
    open?.abort();
  }

  function retry() {
    close();
    on.down();
    const pause = Math.min(LONGEST_RETRY_MS, FIRST_RETRY_MS * 2 ** failures);
    failures += 1;
    again = setTimeout(() => { if (!document.hidden) open(); }, pause);
  }

  function look() {
    clearTimeout(away);
    if (document.hidden) away = setTimeout(close, HIDDEN_MS);
    else if (!stream) open();
  }

  function stop() {
    if (isOver) return;
    isOver = true;
    clearTimeout(away);
    clearInterval(watch);
    document.removeEventListener("visibilitychange", look);
    close();
  }

  const watch = setInterval(() => { if (stream && performance.now() - heard > SILENCE_MS) retry(); }, 1000);
  document.addEventListener("visibilitychange", look);
  open();
  return stop;
}
