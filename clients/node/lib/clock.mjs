// The clock of deadlines.

import { uptime } from "node:os";
import { performance } from "node:perf_hooks";

/** How much the rates of this machine's clock and of the daemon's may differ: one part in a thousand. */
export const CLOCK_DRIFT = 0.001;

/** A difference below this is the granularity of `uptime`. */
const SHORTEST_SUSPEND_MS = 100;

const before = uptime() * 1000 - performance.now();

/** Returns milliseconds of a clock that never goes back, and continues while the machine is suspended. */
export function now() {
  const awake = performance.now();
  const suspended = uptime() * 1000 - awake - before;
  return suspended > SHORTEST_SUSPEND_MS ? awake + suspended : awake;
}
