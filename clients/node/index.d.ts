/** Where the daemon is. */
export interface ClientOptions {
  /** The path of the daemon's unix socket, or its URL. Default: `DISTLOCK_SERVE`, or the usual socket. */
  address?: string;
  /** The token for TCP, unless the URL has it. */
  token?: string;
  /** The certificates that `https` trusts, PEM. */
  ca?: string | Buffer;
}

export interface LockOptions {
  /** How long to wait. Default: a day; 0 does not wait. */
  waitMs?: number;
  /** The lease: how long others wait at most after this process has died. Default: 10 000. */
  ttlMs?: number;
  /** The owner: the same owner may enter a re-entrant lock again. */
  owner?: string;
  /** What the lock is for, shown to those who find it held. */
  label?: string;
  /** A reader's lock. */
  shared?: boolean;
  /** A permit of a semaphore with this many slots. */
  slots?: number;
  /** Lets the owner enter again. */
  reentrant?: boolean;
  /** Withdraws the request. */
  signal?: AbortSignal;
}

/** A lock, a holder or a waiter as `distlock show --json` prints it. */
export type LockInfo = Record<string, unknown>;

/** A held lock: `await using hold = await lock("name")`. */
export declare class Hold implements AsyncDisposable {
  private constructor();
  readonly name: string;
  /** The fencing token: the resource refuses a lower one than it has seen. */
  readonly token: bigint;
  readonly slot?: number;
  /** Aborted, with `Lost` as its reason, when the lock is lost. */
  readonly signal: AbortSignal;
  readonly isLost: boolean;
  /** The time until the lock counts as lost unless the lease is renewed. */
  readonly remainingMs: number;
  /** Throws `Lost` if the lock is lost. Call it before each step that must not happen without the lock. */
  check(): void;
  /** Calls `listener` when another client asks for the lock. */
  onAsked(listener: (reason: string) => void): void;
  /** Sets the lease and renews it at once. */
  extend(ttlMs: number): Promise<void>;
  /** Releases the lock and confirms it. Rejects with `Lost` if it was lost before. */
  release(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** A client of one daemon. */
export declare class Client {
  constructor(options?: ClientOptions);
  /** Acquires a lock. Rejects with `NotAcquired` if another owner holds it. */
  lock(name: string, options?: LockOptions): Promise<Hold>;
  /** Lists locks. */
  locks(prefix?: string): Promise<LockInfo[]>;
  /** Returns one lock. */
  show(name: string): Promise<LockInfo>;
}

/** Acquires a lock from the default daemon. */
export declare function lock(name: string, options?: LockOptions): Promise<Hold>;

/** A failure, with the kind that the daemon reports. */
export declare class DistlockError extends Error {
  readonly kind: string;
}

/** Another owner holds the lock. */
export declare class NotAcquired extends DistlockError {
  readonly holder?: LockInfo;
}

/** The lock was lost. */
export declare class Lost extends DistlockError {
  readonly reason: string;
}
