// The clock of deadlines.

import { uptime } from "node:os";
import { performance } from "node:perf_hooks";

/** How much the rates of this machine's clock and of the daemon's may differ: one part in a thousand. */
export const CLOCK_DRIFT = 0.001;

/** A difference below this is the granularity of `uptime`. */
const GRANULARITY_MS = 20;

const before = uptime() * 1000 - performance.now();

/** How long the machine has been suspended. It only grows, so that the clock never goes back. */
let suspended = 0;

/** Returns milliseconds of a clock that never goes back, and continues while the machine is suspended. */
export function now() {
  // Read in this order, a pause between the two makes the difference smaller: no suspend is seen where there was none.
  const up = uptime() * 1000;
  const awake = performance.now();
  if (up - awake - before > suspended + GRANULARITY_MS) suspended = up - awake - before;
  return awake + suspended;
}
