// Recent wait times, a strip for each lock; and the wait-for graph.

import { ask } from "./stream.js";
import { clock, el, place, say, span, svg } from "./words.js";

const EVERY_MS = 5000;
const NAMES = 180;
const ROW = 18;
const $ = (id) => document.getElementById(id);

export class Waits {
  /** `open` is called with a name when a lock is chosen. */
  constructor(open) {
    this.open = open;
    this.panel = $("waits");
    this.panel.addEventListener("toggle", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.panel);
    setInterval(() => this.look(), EVERY_MS);
  }

  async look() {
    if (document.hidden || !this.isWanted?.()) return;
    try {
      this.data = await ask("/api/v1/waits");
      this.draw();
    } catch {
      // Another part of the page shows that the console or the engine does not respond.
    }
  }

  draw() {
    if (!this.data) return;
    const { heat, graph } = this.data;
    const stuck = new Set(graph.edges.filter((edge) => edge.is_stuck).flatMap((edge) => [edge.from, edge.to]));
    const many = heat.locks === 0 ? "no waits" : heat.locks === 1 ? "1 lock waited for" : `${heat.locks} locks waited for`;
    say($("waits-words"), `${many} in the last ten minutes`);
    say($("waits-stuck"), !stuck.size ? "" : stuck.size === 1 ? "one owner waits for itself" : `${stuck.size} owners wait for each other in a circle`);
    if (!this.panel.open) return;
    const width = Math.max(280, $("heat").clientWidth);
    $("heat").replaceChildren(heat.rows.length ? this.strips(heat, width) : quiet("Nobody waited."));
    // Only when it has changed: an element that has the focus or is being clicked is not replaced.
    const shown = JSON.stringify([graph, width]);
    if (shown === this.shown) return;
    this.shown = shown;
    $("graph").replaceChildren(...(graph.edges.length ? this.graph(graph, width) : [quiet("No holder of a lock waits for another.")]));
  }

  /** A row for each lock, darker for longer waits. */
  strips({ slot_ms, from_ms, till_ms, rows }, width) {
    const cell = (width - NAMES) / ((till_ms - from_ms) / slot_ms);
    const worst = Math.max(...rows.flatMap((row) => row.cells.map((it) => it.p95_ms)), 1000);
    const height = rows.length * ROW + 16;
    const drawing = svg("svg", { class: "strips", viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
    drawing.append(svg("title", { text: `How long locks were waited for, since ${clock(from_ms)}` }));
    rows.forEach(({ name, cells }, index) => {
      const y = index * ROW;
      const label = svg("text", { class: "lock", x: 0, y: y + 13, text: shortened(name, 24) }, svg("title", { text: name }));
      label.addEventListener("click", () => this.open(name));
      drawing.append(label, svg("rect", { class: "ground", x: NAMES, y: y + 2, width: width - NAMES, height: ROW - 4 }));
      for (const { at_ms, p95_ms } of cells) {
        const x = NAMES + ((at_ms - from_ms) / slot_ms) * cell;
        // Logarithmic: a second and a minute must both be visible beside an hour.
        const opacity = 0.15 + 0.85 * (Math.log1p(p95_ms) / Math.log1p(worst));
        drawing.append(svg("rect", { class: "heat", x, y: y + 2, width: Math.max(1, cell - 1), height: ROW - 4, opacity: opacity.toFixed(2) },
          svg("title", { text: `${name}, ${clock(at_ms)}: 95 in 100 waited no longer than ${span(p95_ms)}` })));
      }
    });
    const y = height - 3;
    drawing.append(svg("text", { class: "time", x: NAMES, y, text: clock(from_ms) }), svg("text", { class: "time end", x: width, y, text: clock(Math.min(till_ms, Date.now())) }));
    return drawing;
  }

  /** Owners on a circle, an arrow from each to the owner that it waits for; and the same as text. */
  graph({ parties, edges, left_off }, width) {
    const many = parties.length;
    const height = Math.min(320, 90 + many * 26);
    const [cx, cy, rx, ry] = [width / 2, height / 2, width / 2 - 90, height / 2 - 24];
    const at = (index) => {
      const angle = (2 * Math.PI * index) / many - Math.PI / 2;
      return [cx + rx * Math.cos(angle), cy + ry * Math.sin(angle)];
    };
    const drawing = svg("svg", { class: "graph", viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
    drawing.append(svg("title", { text: "Who waits for whom" }), arrowhead("tip", "edge"), arrowhead("tip-stuck", "edge stuck"));
    for (const { from, to, lock, is_stuck } of edges) drawing.append(arrow(at(from), at(to), lock, is_stuck));
    parties.forEach((party, index) => {
      const [x, y] = at(index);
      const isStuck = edges.some((edge) => edge.is_stuck && (edge.from === index || edge.to === index));
      const words = `${party.owner}, ${place(party)}, holds ${party.holds.join(", ")}`;
      drawing.append(svg("g", { class: isStuck ? "party stuck" : "party" },
        svg("rect", { x: x - 62, y: y - 12, width: 124, height: 24, rx: 6 }),
        svg("text", { x, y: y + 4, text: shortened(party.owner, 17) }), svg("title", { text: words })));
    });
    const rows = edges.map(({ from, to, lock, is_stuck }) => {
      const name = el("button", { class: "link", type: "button", text: lock });
      name.addEventListener("click", () => this.open(lock));
      return el("li", { class: is_stuck ? "stuck" : "" }, el("b", { class: "mono", text: parties[from].owner }), " waits for ", name, ", held by ", el("b", { class: "mono", text: parties[to].owner }), is_stuck ? ": for ever, in a circle" : "");
    });
    if (left_off) rows.push(el("li", { text: `and ${left_off} more` }));
    return [drawing, el("ul", { class: "edges" }, ...rows)];
  }
}

function arrowhead(id, kind) {
  return svg("marker", { id, class: kind, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0 0L8 4L0 8z" }));
}

function arrow([x1, y1], [x2, y2], lock, isStuck) {
  const kind = isStuck ? "edge stuck" : "edge";
  const words = svg("title", { text: `waits for ${lock}` });
  const tip = `url(#${isStuck ? "tip-stuck" : "tip"})`;
  // To itself: a loop above its box.
  if (x1 === x2 && y1 === y2) return svg("path", { class: kind, "marker-end": tip, d: `M${x1 - 20} ${y1 - 12}c0 -28 40 -28 40 -1` }, words);
  // Bent, so that two owners that wait for each other have two lines; and short of the boxes.
  const [dx, dy] = [x2 - x1, y2 - y1];
  const cut = Math.min(0.4, 66 / Math.abs(dx), 15 / Math.abs(dy));
  const bend = 0.12;
  const [mx, my] = [(x1 + x2) / 2 - dy * bend, (y1 + y2) / 2 + dx * bend];
  return svg("path", { class: kind, "marker-end": tip, d: `M${x1 + dx * cut} ${y1 + dy * cut}Q${mx} ${my} ${x2 - dx * cut} ${y2 - dy * cut}` }, words);
}

function quiet(text) {
  return el("p", { class: "quiet", text });
}

function shortened(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
