// One lock: its holders, its queue in order, its past holds and its events; and the button to break it.

import { ask, time } from "./stream.js";
import { clock, el, mode, moment, place, quoted, say, span } from "./words.js";
import { showLease } from "./table.js";
import { gantt } from "./gantt.js";

/** The longest queue that is shown in full. */
const MOST_WAITERS = 200;
/** How many events are shown. */
const MOST_EVENTS = 40;

const $ = (id) => document.getElementById(id);

export class Detail {
  /** `about` lists the console's capabilities; `closed` is called when the panel is closed. */
  constructor(closed) {
    this.panel = $("detail");
    this.closed = closed;
    this.name = null;
    this.ticking = [];
    this.about = {};
    setInterval(() => this.ticking.forEach((tick) => tick(time.now())), 250);
    // The axis moves even if nothing changes.
    setInterval(() => this.draw(), 1000);
    new ResizeObserver(() => this.draw()).observe(this.panel);
    this.dialog();
  }

  async open(name) {
    const isNew = this.name !== name;
    this.name = name;
    if (isNew) {
      this.data = null;
      this.failed = null;
      this.show();
    }
    try {
      const [data, audit] = await Promise.all([ask(`/api/v1/lock?name=${encodeURIComponent(name)}`), ask("/api/v1/audit")]);
      // Another lock may have been opened meanwhile.
      if (this.name !== name) return;
      this.data = data;
      this.failed = null;
      this.audit = audit.rows.filter((row) => row.lock === name);
    } catch (error) {
      if (this.name !== name) return;
      this.failed = error;
    }
    this.show();
  }

  close() {
    if (this.name === null) return;
    this.name = null;
    this.ticking = [];
    this.panel.hidden = true;
    this.closed();
  }

  /** Rebuilds the panel only when its content differs: a button must not be replaced while it is being clicked. */
  show() {
    const read = JSON.stringify([this.name, this.about, this.failed?.message, this.audit, this.data?.queue, this.data?.events, this.data?.lock?.holders], (key, value) => (key === "expires_ms" ? undefined : value));
    if (this.panel.hidden || read !== this.read) this.build();
    this.read = read;
    this.draw();
    this.ticking.forEach((tick) => tick(time.now()));
  }

  build() {
    const focused = this.panel.contains(document.activeElement) && document.activeElement.dataset.keep;
    const scroll = this.panel.scrollTop;
    this.ticking = [];
    this.chart = null;
    const close = el("button", { class: "close", type: "button", "aria-label": "Close", "data-keep": "close", text: "✕" });
    close.addEventListener("click", () => this.close());
    const head = el("header", {}, el("h2", { id: "detail-name", text: this.name }), close);
    this.panel.replaceChildren(head, ...this.parts());
    this.panel.hidden = false;
    this.panel.scrollTop = scroll;
    if (focused) [...this.panel.querySelectorAll("[data-keep]")].find((it) => it.dataset.keep === focused)?.focus();
  }

  parts() {
    if (this.failed) return [el("p", { class: "problem", role: "alert", text: `${this.failed.message} ${this.failed.help ?? ""}` })];
    if (!this.data) return [el("p", { class: "quiet", text: "Asking…" })];
    return [this.holders(), this.queue(), ...this.ticks(), this.history(), this.events(), ...this.breaks()];
  }

  holders() {
    const lock = this.data.lock;
    const holders = lock?.holders ?? [];
    const title = holders.length > 1 ? `Holders (${mode(lock)})` : "Holder";
    const free = lock ? "Free right now; the first waiter is about to get it." : "Free: no holder, no waiters.";
    const cards = holders.map((hold, index) => this.holder(hold, index));
    return section(title, ...(cards.length ? cards : [el("p", { class: "quiet", text: free })]));
  }

  holder(hold, index) {
    const held = el("dd");
    const lease = { track: el("span", { class: "track", "aria-hidden": "true" }), fill: el("span", { class: "fill" }), left: el("span", { class: "left" }) };
    lease.track.append(lease.fill);
    let length = 0;
    this.ticking.push((now) => {
      const expires = this.data?.lock?.holders[index]?.expires_ms ?? null;
      // As in the table: the longest remaining lease ever seen is the lease.
      length = Math.max(length, (expires ?? 0) - now);
      say(held, hold.since_ms === null ? "–" : `${span(now - hold.since_ms)}, since ${clock(hold.since_ms)}`);
      showLease(lease, expires, length, now);
    });
    const facts = el("dl", { class: "facts" },
      ...fact("Owner", hold.owner ?? "a client that is not distlock", "mono"),
      ...fact("Where", place(hold), "mono"),
      ...(hold.label ? fact("Label", hold.label) : []),
      ...fact("Mode", mode({ holders: [hold] })),
      ...fact("Token", hold.token ?? "none", "mono"),
      el("dt", { text: "Held for" }), held,
      el("dt", { text: "Lease left" }), el("dd", { class: "lease" }, lease.track, lease.left),
    );
    return el("div", { class: "holder-card" }, facts, ...this.breakButton(hold));
  }

  breakButton(hold) {
    const why = this.about.read_only ? "This console is read-only."
      : !this.about.breaks ? "This engine cannot break a hold; end the process instead."
      : hold.token === null ? "It has no token, so it cannot be broken by one." : null;
    if (why) return [el("p", { class: "quiet", text: why })];
    const button = el("button", { class: "danger quiet-danger", type: "button", "data-keep": `break-${hold.token}`, text: "Break…" });
    button.addEventListener("click", () => this.askToBreak(hold));
    return [button];
  }

  queue() {
    const { queue } = this.data;
    const items = queue.slice(0, MOST_WAITERS).map((who, index) => {
      const waited = el("span", { class: "waited" });
      this.ticking.push((now) => say(waited, span(now - who.asked_ms)));
      return el("li", {},
        el("span", { class: "place", text: index + 1 }),
        el("span", { class: "who" }, el("b", { class: "mono", text: who.owner }), el("span", { class: "where", text: who.label ? `${place(who)} · ${who.label}` : place(who) })),
        waited);
    });
    const order = this.about.fair ? "the next one first" : "in no order: this engine is not fair";
    if (!items.length) return section("Queue", el("p", { class: "quiet", text: "Nobody waits." }));
    const more = queue.length > MOST_WAITERS ? [el("p", { class: "quiet", text: `and ${queue.length - MOST_WAITERS} more` })] : [];
    return section(`Queue: ${queue.length} waiting, ${order}`, el("ol", { class: "queue" }, ...items), ...more);
  }

  ticks() {
    const { ticks } = this.data;
    if (!ticks.length) return [];
    const now = time.now();
    const rows = ticks.map((tick) => {
      const name = tick.tick.startsWith("name:") ? `${tick.tick.slice(5)}: ` : "";
      const words = tick.done
        ? `until ${moment(tick.until_ms, now)} by ${place(tick)}, took ${span(tick.took_ms)}`
        : `run ${tick.starts} was started ${moment(tick.started_ms, now)} by ${place(tick)}`;
      return el("li", {}, el("span", {}, name, el("b", { text: tick.done ? "done" : "not done" }), ` ${words}`));
    });
    return [section("Once per tick", el("ul", { class: "log" }, ...rows))];
  }

  history() {
    this.chart = el("div", { class: "chart" });
    const legend = [["held", "held now"], ["ended", "released"], ["expired", "lost, lease ran out"], ["broken", "broken"], ["unseen", "end not seen"]];
    const keys = legend.map(([kind, words]) => el("li", {}, el("span", { class: `key ${kind}`, "aria-hidden": "true" }), words));
    const source = this.data.has_history ? "as written down" : "as seen from here";
    return section(`Recent holds, ${source}`, this.chart, el("ul", { class: "legend" }, ...keys));
  }

  draw() {
    if (!this.chart || !this.data || this.panel.hidden) return;
    const holds = [...this.data.past, ...(this.data.lock?.holders ?? [])];
    if (!holds.length) return this.chart.replaceChildren(el("p", { class: "quiet", text: "No hold was seen since the console was started." }));
    this.chart.replaceChildren(gantt(holds, time.now(), Math.max(260, this.chart.clientWidth)));
  }

  events() {
    const { events } = this.data;
    const title = "Events, the newest first";
    if (!events.length) {
      const why = this.about.history ? "It has no history: its holders write none." : "This engine keeps no histories.";
      return section(title, el("p", { class: "quiet", text: why }));
    }
    const now = time.now();
    const rows = events.slice(0, MOST_EVENTS).map((event) => el("li", {},
      el("time", { text: moment(event.at_ms, now) }),
      el("span", {}, el("b", { class: event.what, text: event.what }), ` ${event.what === "broken" ? "by " : ""}${event.owner}, token ${event.token}${took(event)}${event.reason ? `: ${event.reason}` : ""}`,
        el("span", { class: "where", text: ` ${event.label ? `${place(event)} · ${event.label}` : place(event)}` }))));
    const more = events.length > MOST_EVENTS ? [el("p", { class: "quiet" }, "Older ones: ", el("code", { text: `distlock history ${quoted(this.name)}` }))] : [];
    return section(title, el("ul", { class: "log" }, ...rows), ...more);
  }

  breaks() {
    if (!this.audit?.length) return [];
    const words = { broken: "broken", refused: "not broken", unknown: "perhaps broken" };
    const rows = this.audit.slice(0, 20).map((row) => el("li", {},
      el("time", { text: clock(row.at_ms) }),
      el("span", {}, el("b", { text: words[row.event] }), ` token ${row.token}`, row.holder ? ` of ${row.holder.owner}` : "", `: ${row.reason}`, row.error ? ` (${row.error})` : "", el("span", { class: "where", text: ` from ${row.remote}` }))));
    return [section("Breaks", el("ul", { class: "audit" }, ...rows))];
  }

  askToBreak(hold) {
    this.wish = { name: this.name, token: hold.token };
    $("break-facts").replaceChildren(...fact("Lock", this.name, "mono"), ...fact("Held by", `${hold.owner ?? "–"} (${place(hold)})`, "mono"), ...fact("Token", hold.token, "mono"));
    for (const id of ["break-name", "break-reason"]) $(id).value = "";
    say($("break-problem"), "");
    this.check();
    $("break").showModal();
    $("break-name").focus();
  }

  check() {
    const reason = $("break-reason").value.trim();
    const { name, token } = this.wish;
    say($("break-command"), `distlock break ${quoted(name)} --if-token ${token} --reason ${quoted(reason || "…")}`);
    $("break-do").disabled = this.isBreaking || $("break-name").value !== name || !reason;
  }

  dialog() {
    for (const id of ["break-name", "break-reason"]) $(id).addEventListener("input", () => this.check());
    $("break-cancel").addEventListener("click", () => $("break").close());
    $("break").addEventListener("close", () => this.panel.focus());
    $("break-form").addEventListener("submit", async (event) => {
      event.preventDefault();
      if ($("break-do").disabled) return;
      this.isBreaking = true;
      this.check();
      try {
        await ask("/api/v1/break", { method: "POST", body: { ...this.wish, reason: $("break-reason").value.trim() } });
        $("break").close();
      } catch (error) {
        say($("break-problem"), [error.message, error.help].filter(Boolean).join(". "));
      }
      this.isBreaking = false;
      this.check();
      if (this.name !== null) this.open(this.name);
    });
  }
}

function section(title, ...children) {
  return el("section", {}, el("h3", { text: title }), ...children);
}

function took({ what, took_ms }) {
  if (took_ms === undefined || took_ms === null) return "";
  return what === "acquired" ? `, after ${span(took_ms)}` : `, held for ${span(took_ms)}`;
}

function fact(name, value, kind = "") {
  return [el("dt", { text: name }), el("dd", { class: kind, text: value })];
}
