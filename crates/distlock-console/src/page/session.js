// The token with which this page is signed in.
//
// It is kept for this tab and this origin only, and sent in a header. A cookie would go to every port of the host, and so
// to every other program that listens there.

const KEY = "distlock-token";
let known = null;

try {
  known = sessionStorage.getItem(KEY);
} catch {
  // A browser without storage: the token is requested again after a reload.
}

export const session = {
  get token() { return known; },
  keep(token) {
    known = token;
    try {
      sessionStorage.setItem(KEY, token);
    } catch {
      // As above.
    }
  },
  forget() {
    known = null;
    try {
      sessionStorage.removeItem(KEY);
    } catch {
      // As above.
    }
  },
};

/** Removes the token from the address before anything else: it must not end up in a bookmark or a screenshot. */
export function takeLinked() {
  const written = /^#token=(.+)$/.exec(location.hash)?.[1] ?? null;
  if (location.hash) history.replaceState(null, "", location.pathname + location.search);
  try {
    return written && decodeURIComponent(written);
  } catch {
    return written;
  }
}
