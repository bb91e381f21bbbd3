// Distributed locks through the distlock daemon (`distlock serve`).

export { Client, lock } from "./lib/client.mjs";
export { DistlockError, Lost, NotAcquired } from "./lib/errors.mjs";
