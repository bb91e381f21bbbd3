// The test program: worker.mjs COMMAND ADDRESS ...

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

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
};

const [command, address, ...words] = process.argv.slice(2);
const ca = process.env.SERVE_CA && readFileSync(process.env.SERVE_CA);
await commands[command](new Client({ address, token: process.env.SERVE_TOKEN, ca }), ...words);
