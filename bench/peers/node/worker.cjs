// The worker for node-redlock; src/worker.rs describes its protocol.
const fs = require("fs");
const readline = require("readline");
const { Redis } = require("ioredis");
const { default: Redlock } = require("redlock");

const WIDTH = Math.log(1.02);
const [, order, count, key, ttlText, servers] = process.argv.slice(2);
const ttl = Number(ttlText);
const clients = servers.split(",").map((server) => {
  const [host, port] = server.split(":");
  return new Redis({ host, port: Number(port) });
});
// Its default settings: ten attempts with a pause of 200 ms and up to 200 ms more.
const redlock = new Redlock(clients);
redlock.on("error", () => {});
const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

const say = (...text) => process.stdout.write(text.join("\n") + "\n");
const now = () => process.hrtime.bigint();
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const cpu = () => process.cpuUsage().user + process.cpuUsage().system;
const rss = () => fs.readFileSync("/proc/self/status", "utf8").match(/VmRSS:\s+(\d+)/)[1];

// When its attempts are over it throws; the caller begins again at once.
async function lock(name) {
  for (;;) {
    try {
      return await redlock.acquire([name], ttl);
    } catch (error) {
      if (error.name !== "ExecutionError") throw error;
    }
  }
}

// Writes the holder; returns whether it was another one before.
function changes(file, holder) {
  const last = Buffer.alloc(8);
  const length = fs.readSync(file, last, 0, 8, 0);
  fs.writeSync(file, holder, 0, 8, 0);
  return length === 8 && !last.equals(holder);
}

let handovers = 0;

async function cycle(name, file, number, begin, end, histogram) {
  const holder = Buffer.alloc(8);
  holder.writeBigUInt64LE((BigInt(process.pid) << 20n) | BigInt(number));
  for (;;) {
    const asked = now();
    const held = await lock(name);
    const granted = now();
    const isHandover = file !== null && changes(file, holder);
    await held.release();
    const done = now();
    if (done >= end) return;
    if (done >= begin) {
      if (isHandover) handovers += 1;
      const took = Number((file === null ? done : granted) - asked);
      const bucket = Math.floor(Math.log(Math.max(took, 1)) / WIDTH);
      histogram.set(bucket, (histogram.get(bucket) || 0) + 1);
    }
  }
}

async function cycles() {
  await (await lock(`${key}:first:${process.pid}`)).release();
  say("ready");
  const [warm, measured] = (await lines.next()).value.split(" ").slice(1).map(Number);
  const begin = now() + BigInt(warm) * 1000000n;
  const end = begin + BigInt(measured) * 1000000n;
  const histogram = new Map();
  const flags = fs.constants.O_RDWR | fs.constants.O_CREAT;
  const file = order === "shared" ? fs.openSync(process.env.DISTLOCK_PEERS_FILE, flags) : null;
  const fail = (error) => {
    console.error(error);
    process.exit(1);
  };
  for (let number = 0; number < Number(count); number++) {
    const name = order === "shared" ? key : `${key}:${number}`;
    cycle(name, file, number, begin, end, histogram).catch(fail);
  }
  await pause(Math.max(Number(begin - now()) / 1e6, 0));
  const before = cpu();
  await pause(Math.max(Number(end - now()) / 1e6, 0));
  const used = cpu() - before;
  // Tasks that still wait for the lock get it too late to count.
  const pairs = [...histogram].map(([bucket, number]) => `${bucket}:${number}`).join(" ");
  say(`cpu_us ${used}`, `rss_kb ${rss()}`, `handovers ${handovers}`, `histogram ${pairs}`, "done");
}

async function keep() {
  const all = Number(count);
  let granted = 0;
  let next = 0;
  const start = () => {
    if (next === all) return;
    const name = `${key}:${next++}:`;
    const work = async () => {
      granted += 1;
      if (granted === all) say("ready");
      start();
      await new Promise(() => {});
    };
    redlock.using([name], ttl, work).catch(() => {});
  };
  for (let turn = 0; turn < 64; turn++) start();
  for await (const line of lines) {
    if (line.startsWith("look")) say(`cpu_us ${cpu()}`, `rss_kb ${rss()}`, "done");
  }
}

async function main() {
  if (order === "own" || order === "shared") return cycles();
  if (order === "keep") return keep();
  if (order === "wait") say("ready");
  await lock(key);
  say(`held ${now()}`);
  if (order === "hold") await pause(3600000);
}

main().then(
  () => process.stdout.write("", () => process.exit(0)),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
