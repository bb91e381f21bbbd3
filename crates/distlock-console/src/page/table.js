// The table of locks. Only rows in view are elements, so thousands of locks cost no more than a screenful.

import { el, mode, place, say, span } from "./words.js";
import { time } from "./stream.js";

const COLUMNS = [
  { name: "Lock", id: "name", order: (a, b) => compare(a.name, b.name) },
  { name: "Mode", id: "mode" },
  { name: "Holder", id: "holder" },
  { name: "Held for", id: "held", order: (a, b) => (a.since ?? Infinity) - (b.since ?? Infinity) },
  { name: "Lease left", id: "lease", order: (a, b) => (a.expires ?? Infinity) - (b.expires ?? Infinity) },
  { name: "Waiting", id: "waiters", order: (a, b) => b.lock.waiters - a.lock.waiters },
  { name: "Token", id: "token" },
];
/** Rows outside the view that are elements too. */
const MARGIN = 8;

const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

export class Table {
  /** `open` is called with a name when a row is chosen. */
  constructor(open) {
    this.open = open;
    this.grid = document.getElementById("table");
    this.body = document.getElementById("body");
    this.rows = document.getElementById("rows");
    this.locks = new Map();
    this.shown = [];
    this.elements = new Map();
    this.words = [];
    this.column = COLUMNS[0];
    this.chosen = null;
    this.fresh = new Set();
    this.drawn = 0;
    this.heading();
    this.grid.addEventListener("keydown", (event) => this.key(event));
    this.body.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.resize()).observe(this.body);
    setInterval(() => this.tick(), 250);
    this.resize();
  }

  /** Replaces all locks. */
  replace(locks) {
    const before = this.locks;
    this.locks = new Map();
    for (const lock of locks) this.put(lock, before.get(lock.name));
    this.sort();
    // For tests that measure how soon a change is visible: after the next frame is drawn.
    requestAnimationFrame(() => setTimeout(() => performance.mark("first rows")));
  }

  /** Applies changes. */
  change({ set, renewed, gone }) {
    for (const lock of set) {
      if (!this.locks.has(lock.name)) this.fresh.add(lock.name);
      this.put(lock, this.locks.get(lock.name));
    }
    for (const [name, expiries] of renewed) {
      const entry = this.locks.get(name);
      if (!entry) continue;
      expiries.forEach((expires, index) => { entry.lock.holders[index].expires_ms = expires; });
      this.put(entry.lock, entry);
    }
    for (const name of gone) this.locks.delete(name);
    if (set.length || gone.length || this.column.id === "lease") this.sort();
    else this.tick();
  }

  put(lock, before) {
    const first = lock.holders[0];
    const left = (first?.expires_ms ?? 0) - time.now();
    const same = before && before.lock.holders[0]?.token === first?.token;
    const text = [lock.name, ...lock.holders.flatMap((it) => [it.owner, it.user, it.host, it.label])];
    this.locks.set(lock.name, {
      name: lock.name,
      lock,
      since: first?.since_ms ?? null,
      expires: first?.expires_ms ?? null,
      // The longest remaining lease ever seen is taken for the length of the lease.
      lease: Math.max(left, same ? before.lease : 0),
      text: text.filter(Boolean).join("\n").toLowerCase(),
    });
  }

  filter(text) {
    this.words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.body.scrollTop = 0;
    this.sort();
  }

  sort() {
    const fits = (entry) => this.words.every((word) => entry.text.includes(word));
    const order = this.column.order;
    this.shown = [...this.locks.values()].filter(fits).sort((a, b) => order(a, b) || compare(a.name, b.name));
    this.grid.setAttribute("aria-rowcount", this.shown.length + 1);
    this.rows.style.height = `${this.shown.length * this.height}px`;
    this.draw();
    this.changed?.();
  }

  /** Selects a row by name and scrolls it into view. */
  choose(name) {
    this.chosen = name;
    const index = this.shown.findIndex((entry) => entry.name === name);
    if (index >= 0) {
      const top = index * this.height;
      const { scrollTop, clientHeight } = this.body;
      if (top < scrollTop) this.body.scrollTop = top;
      if (top + this.height > scrollTop + clientHeight) this.body.scrollTop = top + this.height - clientHeight;
    }
    this.draw();
  }

  move(by) {
    if (!this.shown.length) return;
    const index = this.shown.findIndex((entry) => entry.name === this.chosen);
    const isStep = index < 0 && Number.isFinite(by);
    const next = isStep ? (by < 0 ? this.shown.length - 1 : 0) : index + by;
    this.choose(this.shown[Math.max(0, Math.min(this.shown.length - 1, next))].name);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("button")) return;
    const page = Math.max(1, Math.floor(this.body.clientHeight / this.height) - 1);
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps) this.move(steps[event.key]);
    else if (event.key === "Enter" && this.chosen !== null) this.open(this.chosen);
    else return;
    event.preventDefault();
  }

  heading() {
    const cells = COLUMNS.map((column, index) => {
      const cell = el("div", { class: `cell ${column.id}`, role: "columnheader", "aria-colindex": index + 1 });
      if (!column.order) {
        cell.textContent = column.name;
        return cell;
      }
      const button = el("button", { class: "sort", type: "button", text: column.name });
      button.addEventListener("click", () => {
        this.column = column;
        this.mark(cells);
        this.sort();
      });
      cell.append(button);
      return cell;
    });
    document.getElementById("columns").append(...cells);
    this.mark(cells);
  }

  mark(cells) {
    cells.forEach((cell, index) => {
      if (!COLUMNS[index].order) return;
      const direction = COLUMNS[index].id === "waiters" ? "descending" : "ascending";
      cell.setAttribute("aria-sort", COLUMNS[index] === this.column ? direction : "none");
    });
  }

  resize() {
    this.height = parseFloat(getComputedStyle(this.grid).getPropertyValue("--row")) || 36;
    // The heading leaves room for the scroll bar.
    this.grid.style.setProperty("--gutter", `${this.body.offsetWidth - this.body.clientWidth}px`);
    this.sort();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.body.scrollTop / this.height) - MARGIN);
    const last = Math.ceil((this.body.scrollTop + this.body.clientHeight) / this.height) + MARGIN;
    const inView = new Map();
    this.shown.slice(first, last).forEach((entry, at) => inView.set(entry.name, [entry, first + at]));
    for (const [name, element] of this.elements) {
      if (inView.has(name)) continue;
      element.remove();
      this.elements.delete(name);
    }
    for (const [name, [entry, index]] of inView) this.row(name, entry, index);
    this.fresh.clear();
    const active = this.elements.get(this.chosen);
    if (active) this.grid.setAttribute("aria-activedescendant", active.id);
    else this.grid.removeAttribute("aria-activedescendant");
    this.tick();
  }

  row(name, entry, index) {
    let element = this.elements.get(name);
    if (!element) {
      element = this.newRow(name);
      if (this.fresh.has(name)) element.classList.add("fresh");
      this.elements.set(name, element);
      this.rows.append(element);
    }
    element.style.transform = `translateY(${index * this.height}px)`;
    element.setAttribute("aria-rowindex", index + 2);
    element.setAttribute("aria-selected", name === this.chosen);
    if (element.lock === entry.lock) return;
    element.lock = entry.lock;
    const [first] = entry.lock.holders;
    const { cells } = element;
    say(cells.mode, mode(entry.lock));
    say(cells.who, first ? place(first) : "no holder yet");
    say(cells.label, first?.label ?? "");
    say(cells.waiters, entry.lock.waiters ? String(entry.lock.waiters) : "–");
    cells.waiters.classList.toggle("some", entry.lock.waiters > 0);
    say(cells.token, first?.token ?? "–");
  }

  newRow(name) {
    const cells = {
      name: el("div", { class: "cell name", role: "gridcell", "aria-colindex": 1, text: name, title: name }),
      mode: el("div", { class: "cell mode", role: "gridcell", "aria-colindex": 2 }),
      who: el("span", { class: "who" }),
      label: el("span", { class: "label" }),
      held: el("div", { class: "cell held", role: "gridcell", "aria-colindex": 4 }),
      left: el("span", { class: "left" }),
      fill: el("span", { class: "fill" }),
      waiters: el("div", { class: "cell waiters", role: "gridcell", "aria-colindex": 6 }),
      token: el("div", { class: "cell token", role: "gridcell", "aria-colindex": 7 }),
    };
    const holder = el("div", { class: "cell holder", role: "gridcell", "aria-colindex": 3 }, cells.who, cells.label);
    cells.track = el("span", { class: "track", "aria-hidden": "true" }, cells.fill);
    const lease = el("div", { class: "cell lease", role: "gridcell", "aria-colindex": 5 }, cells.track, cells.left);
    const parts = [cells.name, cells.mode, holder, cells.held, lease, cells.waiters, cells.token];
    const element = el("div", { class: "row", role: "row", id: `row-${this.drawn++}` }, ...parts);
    element.cells = cells;
    element.addEventListener("click", () => {
      this.choose(name);
      this.open(name);
    });
    return element;
  }

  /** Updates the times in the visible rows. */
  tick() {
    const now = time.now();
    for (const [name, { cells }] of this.elements) {
      const entry = this.locks.get(name);
      if (!entry) continue;
      say(cells.held, entry.since === null ? "–" : span(now - entry.since));
      showLease(cells, entry.expires, entry.lease, now);
    }
  }
}

/** A lease as a bar and as text. */
export function showLease({ track, fill, left }, expires, lease, now) {
  track.hidden = expires === null;
  if (expires === null) return say(left, "no end");
  const rest = expires - now;
  const part = lease > 0 ? Math.max(0, Math.min(1, rest / lease)) : 0;
  fill.style.transform = `scaleX(${part.toFixed(3)})`;
  track.dataset.state = rest <= 0 ? "over" : part < 0.34 ? "low" : "good";
  say(left, rest <= 0 ? "run out" : span(rest));
}
