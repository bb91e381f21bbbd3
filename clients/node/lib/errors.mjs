// The errors of the client: the kinds of the library as text.

/** A failure, with the kind that the daemon reports. */
export class DistlockError extends Error {
  constructor(kind, message, options) {
    super(message, options);
    this.name = new.target.name;
    this.kind = kind;
  }
}

/** Another owner holds the lock. */
export class NotAcquired extends DistlockError {
  constructor(message, holder) {
    super("timeout", message);
    this.holder = holder;
  }
}

/** The lock was lost. */
export class Lost extends DistlockError {
  constructor(message, reason) {
    super("lost", message);
    this.reason = reason;
  }
}
