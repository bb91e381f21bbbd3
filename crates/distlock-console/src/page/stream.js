// What the server says: signing in, questions, and the stream of events.

const RETRY_MS = 2000;
/** Something comes every five seconds, but for the ten that a look may take; after longer silence the connection is dead. */
const SILENCE_MS = 20000;
/** A page that nobody sees stops looking after so long. */
const HIDDEN_MS = 30000;

/** Asks the server; a failure is an Error with what it said. */
export async function ask(path, { method = "GET", body, token } = {}) {
  const headers = {};
  if (method !== "GET") headers["X-Distlock-Console"] = "1";
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body), redirect: "error" });
  const data = await answer.json();
  if (answer.ok) return data;
  const error = new Error(data.error?.message ?? `status ${answer.status}`);
  throw Object.assign(error, { status: answer.status, kind: data.error?.kind, help: data.error?.help });
}

/** The server's clock, by the answer that took the shortest way. */
export const time = {
  offset: null,
  now() { return performance.now() + (this.offset ?? Date.now() - performance.now()); },
  learn(at) {
    const offset = at - performance.now();
    // A clock that was set back would otherwise never be believed again.
    if (this.offset === null || offset > this.offset || this.offset - offset > 5000) this.offset = offset;
  },
};

/** Follows the events for as long as the page is seen. `on` has a function for each kind of event, `down` and `denied`. */
export function follow(on) {
  let source = null;
  let heard = 0;
  let away = null;

  function open() {
    close();
    heard = performance.now();
    source = new EventSource("/api/v1/events");
    for (const kind of ["snapshot", "changes", "time", "trouble", "audit"]) {
      source.addEventListener(kind, (event) => {
        heard = performance.now();
        const data = JSON.parse(event.data);
        if (kind === "changes" || kind === "time") time.learn(data.at_ms);
        on[kind]?.(data);
      });
    }
    source.addEventListener("error", retry);
  }

  function close() {
    source?.close();
    source = null;
  }

  async function retry() {
    close();
    try {
      await ask("/api/v1/session");
    } catch (error) {
      if (error.status === 401) return on.denied();
    }
    on.down();
    setTimeout(() => { if (!source && !document.hidden) open(); }, RETRY_MS);
  }

  setInterval(() => { if (source && performance.now() - heard > SILENCE_MS) retry(); }, 1000);
  document.addEventListener("visibilitychange", () => {
    clearTimeout(away);
    if (document.hidden) away = setTimeout(close, HIDDEN_MS);
    else if (!source) open();
  });
  open();
}
