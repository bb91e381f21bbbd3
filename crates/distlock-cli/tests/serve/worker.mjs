// The test program: worker.mjs COMMAND ADDRESS ...

import assert from "node:assert/strict";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import { syncBuiltinESMExports } from "node:module";
import os from "node:os";

import { Client, DistlockError, Lost, NotAcquired } from "../../../../clients/node/index.mjs";

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const say = (...words) => console.log(words.join(" "));

const commands = {
  // Holds a lock, and writes down when `check` passed for the last time.
  async hold(client, name, ttl) {
    const held = await client.lock(name, { ttlMs: Number(ttl) * 1000 });
    let lastGood = 0;
    try {
      for (;;) {
        const before = Date.now() / 1000;
        held.check();
        if (!lastGood) say("held", held.token);
        lastGood = before;
        await pause(1);
      }
    } catch (error) {
      assert(error instanceof Lost, error);
      assert(held.signal.aborted && held.signal.reason instanceof Lost);
      say("lost", lastGood, error.reason);
    }
  },

  async basics(client, name) {
    const held = await client.lock(name, { waitMs: 5000, label: "basics" });
    held.check();
    assert(held.remainingMs > 0 && !held.signal.aborted);
    assert.equal((await client.show(name)).holder.label, "basics");
    assert.deepEqual((await client.locks(name)).map((lock) => lock.name), [name]);
    await assert.rejects(client.lock(name, { waitMs: 0 }), (error) => {
      return error instanceof NotAcquired && error.kind === "timeout" && error.holder.label === "basics";
    });
    const gaveUp = new AbortController();
    setTimeout(() => gaveUp.abort(new Error("enough")), 100);
    await assert.rejects(client.lock(name, { signal: gaveUp.signal }), /enough/);
    await held.extend(20_000);
    held.check();
    await held[Symbol.asyncDispose]();
    const next = await client.lock(name, { waitMs: 5000 });
    assert(next.token > held.token, "tokens rise");
    await next.release();
    await next.release();
    for (const bad of ["", "a\nb", "x".repeat(600)]) {
      await assert.rejects(client.lock(bad), (error) => error instanceof DistlockError && error.kind === "invalid_input");
    }
    say("good");
  },

  async readers(client, name) {
    const readers = await Promise.all([1, 2].map(() => client.lock(name, { shared: true, waitMs: 5000 })));
    await Promise.all(readers.map((reader) => reader.release()));
    const slots = await Promise.all([1, 2].map(() => client.lock(`${name}:slots`, { slots: 2, waitMs: 5000 })));
    assert.deepEqual(slots.map((hold) => hold.slot).sort(), [0, 1]);
    await Promise.all(slots.map((hold) => hold.release()));
    say("good");
  },

  // Errors do not have the token, which is in the address.
  async secret() {
    const client = new Client({ address: "http://127.0.0.1:1/#token=sesame-sesame-sesame" });
    for (const action of [() => client.lock("a", { waitMs: 0 }), () => client.locks(), () => client.show("a")]) {
      await assert.rejects(action(), (error) => {
        const hasAddress = error.message.includes("127.0.0.1:1");
        return error instanceof DistlockError && hasAddress && !error.message.includes("sesame");
      });
    }
    say("good");
  },

  // The lock is lost at its deadline, whatever else goes wrong.
  async nonsense() {
    const grant = { id: "1", name: "a", token: "7", lease: true, left_ms: 3000, took_ms: 0 };
    const server = http.createServer((request, response) => {
      if (request.method === "GET") return response.end("event: held\ndata: <html>\n\n");
      response.end(request.url.includes("locks") ? JSON.stringify(grant) : "<html>");
    });
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    const held = await new Client({ address: `http://127.0.0.1:${server.address().port}` }).lock("a");
    await new Promise((resolve) => held.signal.addEventListener("abort", resolve));
    say("good");
    process.exit();
  },

  // The clock leaps: the signal is aborted long before the timers that were set before.
  async suspended(client, name) {
    const held = await client.lock(name, { ttlMs: 3_000_000 });
    const uptime = os.uptime;
    os.uptime = () => uptime() + 4000;
    syncBuiltinESMExports();
    const limit = setTimeout(() => assert.fail("not in time"), 30_000);
    await new Promise((resolve) => held.signal.addEventListener("abort", resolve));
    clearTimeout(limit);
    say("good");
  },

  // Another user made the directory in which the daemon is by default.
  async impostor() {
    const uid = 1_000_000_000 + process.pid;
    process.geteuid = () => uid;
    const directory = `/tmp/distlock-${uid}`;
    mkdirSync(directory);
    writeFileSync(`${directory}/serve.sock`, "");
    try {
      assert.throws(() => new Client(), (error) => error.kind === "auth" && error.message.includes(directory));
    } finally {
      rmSync(directory, { recursive: true });
    }
    say("good");
  },

  // A wait that no timer can have is the daemon's to refuse.
  async endless(client, name) {
    const warnings = [];
    process.on("warning", (warning) => warnings.push(warning.name));
    await assert.rejects(client.lock(name, { waitMs: Infinity }), (error) => error.kind === "invalid_input");
    await pause(10);
    assert.deepEqual(warnings, []);
    say("good");
  },
};

const [command, address, ...words] = process.argv.slice(2);
const ca = process.env.SERVE_CA && readFileSync(process.env.SERVE_CA);
const client = address && new Client({ address, token: process.env.SERVE_TOKEN, ca });
await commands[command](client, ...words);
