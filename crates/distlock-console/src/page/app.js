// The page: signs in, follows the events, and updates table and detail.

import { session, takeLinked } from "./session.js";
import { ask, follow, time } from "./stream.js";
import { Detail } from "./detail.js";
import { Table } from "./table.js";
import { Waits } from "./waits.js";
import { clock, moment, say, span } from "./words.js";

const $ = (id) => document.getElementById(id);

const detail = new Detail(() => {
  table.choose(table.chosen);
  remember();
  table.grid.focus();
});
const table = new Table((name) => {
  detail.open(name);
  remember();
});
const waits = new Waits((name) => {
  table.choose(name);
  table.open(name);
});
waits.isWanted = () => state === "good";
/** The current problem, if any: with the engine, the connection to the console, or the token. */
let state = "loading";
let look = null;
/** How many listings ago the open lock last changed. */
let settled = 0;
/** Ends the stream of events; null while there is none. */
let unfollow = null;
/** The pause before a console is tried again that did not respond when the page was opened. */
const RETRY_MS = 2000;
const DAY_MS = 24 * 60 * 60 * 1000;
/** Data older than this is shown as old: an engine that is slow to list is listed less often. */
const OLD_MS = 5000;

table.changed = () => {
  const { shown, locks } = table;
  const all = locks.size === 1 ? "1 lock" : `${locks.size} locks`;
  say($("count"), shown.length === locks.size ? all : `${shown.length} of ${all}`);
  $("nothing").hidden = shown.length > 0;
  const asking = look === null && state !== "trouble";
  say($("nothing"), asking ? "Asking the engine…" : locks.size ? "No lock matches the filter." : look === null ? "No data yet." : "No lock is held or waited for.");
};

const on = {
  snapshot(data) {
    if (data.look !== undefined) {
      look = data;
      time.learn(data.at_ms);
    }
    table.replace(data.locks);
    if (data.trouble) on.trouble({ error: data.trouble });
    else show("good");
    waits.look();
    if (detail.name !== null) detail.open(detail.name);
  },
  changes(data) {
    look = data;
    table.change(data);
    show("good");
    const names = [...data.set.map((lock) => lock.name), ...data.gone, ...data.renewed.map(([name]) => name)];
    // Read again after the next listing: a history is written a moment after the event.
    settled = names.includes(detail.name) ? 0 : settled + 1;
    if (detail.name !== null && settled < 2) detail.open(detail.name);
  },
  trouble({ error }) {
    show("trouble", error);
  },
  audit(row) {
    if (detail.name === row.lock) detail.open(row.lock);
  },
  down() {
    show("down");
  },
  denied() {
    session.forget();
    showGate("The console was started anew, or the token is not the right one any more.");
  },
};

/** One plain sentence about the engine, and a banner when there is a problem. */
function show(now, error) {
  state = now;
  const known = look ? ` What is shown is from ${clock(look.at_ms)}.` : "";
  const banner = {
    good: "",
    loading: "",
    trouble: `The engine does not answer as it should: ${error?.message ?? ""}.${known} It is asked again, the later the longer it took to fail.`,
    down: `The console does not answer.${known} Trying again.`,
  }[now];
  say($("banner"), banner);
  $("banner").hidden = !banner;
  document.body.dataset.state = now;
  $("health").dataset.state = now;
  health();
  $("health").title = look ? `The last listing took ${look.took_ms} ms` : "";
  table.changed();
  stats();
}

function health() {
  const age = look ? time.now() - look.at_ms : 0;
  const good = age > OLD_MS ? `Live, ${span(age)} old` : "Live";
  say($("health"), { good, loading: "Loading…", trouble: "Engine in trouble", down: "Disconnected", denied: "Not signed in" }[state]);
}

function stats() {
  if (!look) return;
  const now = time.now();
  let [held, waiting, oldest, longest, contended] = [0, 0, Infinity, Infinity, null];
  for (const { lock, since } of table.locks.values()) {
    held += lock.holders.length;
    waiting += lock.waiters;
    if (since !== null) oldest = Math.min(oldest, since);
    if (lock.waiting_since_ms !== null) longest = Math.min(longest, lock.waiting_since_ms);
    if (lock.waiters > (contended?.waiters ?? 0)) contended = lock;
  }
  say($("stat-held"), String(held));
  say($("stat-waiting"), String(waiting));
  say($("stat-oldest"), oldest === Infinity ? "–" : span(now - oldest));
  say($("stat-longest"), longest === Infinity ? "–" : span(now - longest));
  const button = $("stat-contended");
  button.disabled = contended === null;
  button.value = contended?.name ?? "";
  say(button, contended?.name ?? "none");
  lost(look.lost);
  document.title = `${held} held, ${waiting} waiting · distlock`;
}

function lost({ count, since_ms, unread, last }) {
  const button = $("stat-lost");
  button.disabled = last === null;
  button.value = last ?? "";
  say(button, String(count));
  // Listings are a second apart, so a day that is almost covered counts as covered.
  const isWhole = since_ms <= look.at_ms - DAY_MS + 60000;
  // Without its seconds.
  const since = moment(since_ms, look.at_ms).slice(0, -3);
  say($("stat-lost-since"), isWhole ? "" : `known since ${since}`);
  const but = unread ? `, and those of ${unread} could not be read` : "";
  button.parentElement.title = isWhole && !unread ? "Lost or broken" : `Lost or broken. All of them since ${since}, when the console began to watch or could not read everything; older ones as far as histories tell${but}.`;
}

/** The filter and the open lock are in the address, so that it can be bookmarked and shared. */
function remember() {
  const query = new URLSearchParams();
  if ($("filter").value) query.set("q", $("filter").value);
  if (detail.name !== null) query.set("lock", detail.name);
  document.body.classList.toggle("with-detail", detail.name !== null);
  history.replaceState(null, "", query.size ? `/?${query}` : "/");
}

function keys(event) {
  const isTyping = event.target.matches("input");
  if ($("break").open || $("work").hidden || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/" && !isTyping) $("filter").focus();
  else if (event.key === "Escape" && isTyping && event.target.value) setFilter("");
  else if (event.key === "Escape" && detail.name !== null) detail.close();
  else if (event.key === "Escape") table.grid.focus();
  else if (isTyping && ["ArrowDown", "Enter"].includes(event.key)) {
    table.grid.focus();
    table.move(0);
  } else if (!isTyping && ["j", "k", "ArrowDown", "ArrowUp"].includes(event.key) && event.target === document.body) {
    table.grid.focus();
    table.key(event);
  } else return;
  event.preventDefault();
}

function setFilter(text) {
  $("filter").value = text;
  table.filter(text);
  remember();
}

async function start(token) {
  const about = await ask("/api/v1/session", { token });
  session.keep(token);
  detail.about = about;
  say($("engine"), about.engine);
  $("engine").title = about.engine;
  $("read-only").hidden = !about.read_only;
  $("gate").hidden = true;
  $("work").hidden = false;
  $("sign-out").hidden = false;
  table.resize();
  table.grid.focus();
  unfollow ??= follow(on);
}

/** Signs in with a token that was typed, or followed in a link while the page is open. */
function signIn(token) {
  // A new start, so that nothing of the previous user is left.
  start(token).then(() => location.reload()).catch((error) => showGate(error.message));
}

function signOut() {
  session.forget();
  location.reload();
}

function showGate(problem) {
  unfollow?.();
  unfollow = null;
  $("sign-out").hidden = true;
  $("work").hidden = true;
  $("gate").hidden = false;
  state = "denied";
  $("health").dataset.state = state;
  health();
  say($("sign-in-problem"), problem);
  $("token").focus();
}

async function begin() {
  const linked = takeLinked();
  const query = new URLSearchParams(location.search);
  $("filter").addEventListener("input", () => setFilter($("filter").value));
  for (const id of ["stat-contended", "stat-lost"]) {
    $(id).addEventListener("click", (event) => {
      table.choose(event.target.value);
      table.open(event.target.value);
    });
  }
  $("sign-in").addEventListener("submit", (event) => {
    event.preventDefault();
    signIn($("token").value.trim());
  });
  $("sign-out").addEventListener("click", signOut);
  window.addEventListener("hashchange", () => {
    const token = takeLinked();
    if (token) signIn(token);
  });
  document.addEventListener("keydown", keys);
  setInterval(() => { if (state === "good") { health(); stats(); } }, 1000);
  await enter(linked);
  if (!unfollow) return;
  if (query.get("q")) setFilter(query.get("q"));
  if (query.get("lock")) {
    table.chosen = query.get("lock");
    table.open(table.chosen);
  }
}

/** Starts with the token of the link or of this tab, as soon as the console responds. */
async function enter(linked) {
  while ($("gate").hidden && !unfollow) {
    try {
      await start(linked ?? session.token);
    } catch (error) {
      if (error.status === 401) return showGate(refusal(linked));
      show("down");
      $("work").hidden = false;
      await new Promise((go) => setTimeout(go, RETRY_MS));
    }
  }
}

/** Why the token is requested. */
function refusal(linked) {
  if (linked) return "That token is not the right one.";
  if (!session.token) return "";
  session.forget();
  return "The token of this tab is not the right one any more.";
}

begin();
