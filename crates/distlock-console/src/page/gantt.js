// The past holds of a lock: a lane for each owner, a bar for each hold.

import { clock, place, svg } from "./words.js";

const LANE = 22;
const AXIS = 20;
const NAMES = 116;
const MOST_LANES = 12;
const DAY = 86400 * 1000;
/** The distances between two marks; longer ones are whole days. */
const STEPS = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400].map((s) => s * 1000);
const ENDS = {
  held: "held now",
  released: "released",
  ended: "released, or broken from elsewhere",
  expired: "its lease ran out",
  lost: "lost",
  broken: "broken",
  unseen: "ended, the end was not seen",
};

/** The drawing; `width` in pixels. */
export function gantt(holds, now, width) {
  const bars = holds.map((hold) => bar(hold, now)).sort((a, b) => a.from - b.from);
  const owners = [...new Set(bars.map((it) => it.owner).reverse())].slice(0, MOST_LANES);
  const start = Math.min(...bars.filter((it) => owners.includes(it.owner)).map((it) => it.from), now - 20000);
  const height = owners.length * LANE + AXIS;
  const right = width - 8;
  const x = (ms) => NAMES + ((ms - start) / (now - start)) * (right - NAMES);
  const drawing = svg("svg", { class: "gantt", viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
  drawing.append(svg("title", { text: `${bars.length} holds by ${owners.length} owners since ${clock(start)}` }));
  drawing.append(...axis(start, now, x, height - AXIS, right));
  owners.forEach((owner, lane) => {
    const y = lane * LANE;
    const name = svg("text", { class: "owner", x: 0, y: y + 15, text: shortened(owner, 17) }, svg("title", { text: owner }));
    drawing.append(name, ...bars.filter((it) => it.owner === owner).flatMap((it) => shapes(it, x, y)));
  });
  return drawing;
}

function bar(hold, now) {
  const end = hold.end ?? "held";
  const till = end === "held" ? now : hold.ended_ms;
  const seen = end === "held" ? now : hold.seen_ms;
  const from = Math.min(hold.since_ms ?? hold.asked_ms ?? seen, seen);
  return { hold, end, from, seen, till, owner: hold.owner ?? "not distlock" };
}

function shapes({ hold, end, from, seen, till }, x, y) {
  const words = `token ${hold.token ?? "–"}, ${place(hold)}, from ${clock(from)} to ${end === "held" ? "now" : clock(till)}: ${ENDS[end]}${hold.reason ? `, ${hold.reason}` : ""}`;
  const width = Math.max(3, x(seen) - x(from));
  const shape = svg("rect", { class: `hold ${end}`, x: x(from), y: y + 4, width, height: LANE - 8, rx: 3 }, svg("title", { text: words }));
  const parts = [shape];
  // The end lies between the last listing that saw the hold and the first that did not.
  if (till - seen > 3000) {
    parts.unshift(svg("rect", { class: "maybe", x: x(seen), y: y + 8, width: Math.max(1, x(till) - x(seen)), height: LANE - 16 }));
  }
  if (["broken", "expired", "lost"].includes(end)) {
    const at = x(from) + width + 6;
    parts.push(svg("path", { class: `mark ${end}`, d: `M${at - 3} ${y + 7}l6 8m0 -8l-6 8` }));
  }
  return parts;
}

function axis(start, now, x, y, right) {
  const room = Math.max(2, Math.floor((right - NAMES) / 76));
  const step = STEPS.find((it) => (now - start) / it <= room) ?? Math.ceil((now - start) / room / DAY) * DAY;
  const zone = new Date(now).getTimezoneOffset() * 60000;
  const parts = [svg("line", { class: "axis", x1: NAMES, x2: right, y1: y + 0.5, y2: y + 0.5 })];
  for (let at = Math.ceil((start - zone) / step) * step + zone; at <= now; at += step) {
    parts.push(svg("line", { class: "grid", x1: x(at), x2: x(at), y1: 0, y2: y + 4 }));
    if (x(at) < right - 24) parts.push(svg("text", { class: "time", x: x(at), y: y + 16, text: clock(at) }));
  }
  return parts;
}

function shortened(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
