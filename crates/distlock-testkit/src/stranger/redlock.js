// Executes orders with node-redlock: one order per line, one answer per line. Arguments: host, port.
const Redis = require("ioredis");
const Redlock = require("redlock");

const server = new Redis({ host: process.argv[1], port: Number(process.argv[2]) });
const once = new Redlock([server], { retryCount: 0 });
const patient = new Redlock([server], { retryCount: -1, retryDelay: 20, retryJitter: 10 });
const locks = new Map();

// A LockError means that the lock is held by another client, or not held; any other error is a defect of this program.
async function attempt(change, refused) {
  try {
    await change();
    return null;
  } catch (error) {
    if (error.name !== "LockError") throw error;
    return refused;
  }
}

const take = (redlock) => async (key, ttl) =>
  (await attempt(async () => locks.set(key, await redlock.lock(key, Number(ttl))), "busy")) || "held";

const change = (what) => async (key, ttl) =>
  (await attempt(() => locks.get(key)[what](Number(ttl)), "not ours")) || "done";

async function meet(key, times) {
  for (let i = 0; i < Number(times); i++) {
    const lock = await patient.lock(key, 30000);
    if ((await server.incr(key + ":inside")) !== 1) return "two holders";
    await new Promise((resolve) => setTimeout(resolve, 1));
    await server.decr(key + ":inside");
    await lock.unlock();
  }
  return "done";
}

const orders = { try: take(once), lock: take(patient), extend: change("extend"), unlock: change("unlock"), meet };

async function serve() {
  const lines = require("readline").createInterface({ input: process.stdin });
  for await (const line of lines) {
    const [order, ...words] = line.split(" ");
    process.stdout.write((await orders[order](...words)) + "\n");
  }
  process.exit(0);
}

serve().catch((error) => {
  console.error(error);
  process.exit(1);
});
