// Elements and texts. Text from outside only ever becomes text: nothing here makes markup from it.

/** An element with attributes and children; `text` is its text. */
export function el(tag, { text, ...attributes } = {}, ...children) {
  return fill(document.createElement(tag), text, attributes, children);
}

/** The same for drawings. */
export function svg(tag, { text, ...attributes } = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), text, attributes, children);
}

function fill(element, text, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value);
  }
  if (text !== undefined) element.textContent = text;
  element.append(...children);
  return element;
}

/** Sets an element's text only when it differs, to avoid needless layout. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A duration in few characters. */
export function span(ms) {
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const two = (number) => String(number).padStart(2, "0");
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} m ${two(Math.floor(seconds % 60))} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h ${two(minutes % 60)} m`;
  return `${Math.floor(hours / 24)} d ${two(hours % 24)} h`;
}

/** A time of day. */
export function clock(ms) {
  return new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}

/** A time of day, with the day unless it is the same as that of `now`. */
export function moment(ms, now) {
  const day = (at) => new Date(at).toLocaleDateString([], { month: "short", day: "numeric" });
  return day(ms) === day(now) ? clock(ms) : `${day(ms)}, ${clock(ms)}`;
}

/** The place of a process. */
export function place(who) {
  return who.owner === undefined ? "not distlock" : `${who.user}@${who.host}/${who.pid}`;
}

/** How a lock is held. */
export function mode(lock) {
  const how = lock.holders[0]?.mode;
  if (how === undefined) return lock.holders.length ? "foreign" : "free";
  if (typeof how === "string") return lock.holders.length > 1 ? `${how} × ${lock.holders.length}` : how;
  // While a semaphore is resized, its holders may have requested it with different numbers.
  return `${lock.holders.length} of ${Math.max(...lock.holders.map((holder) => holder.mode?.slot?.of ?? 0))}`;
}

/** Quotes a word for a shell. */
export function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}
