// What the daemon tells: one view at a time, sent again whenever it changes, and nothing while the page is not seen.

const RETRY_MS = 10_000, RECONNECT_MS = 3_000;

export async function ask(view, query) {
  const response = await fetch(`/api/${view}?${new URLSearchParams(query)}`, { headers: { Accept: "application/json" } });
  const told = await response.json();
  if (!response.ok) throw new Error(told.error);
  return told;
}

export async function change(view, body) {
  const response = await fetch(`/api/${view}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const told = await response.json();
  if (!response.ok) throw Object.assign(new Error(told.error), { status: response.status });
  return told;
}

// Calls `onData` with each state of a view, `onRefused` when there is none, `onStatus` with how the connection is.
// `query` is called for each connection, so that a view whose states follow one another goes on where it was: a browser that
// connects again by itself would ask for the same as before. Returns what ends it.
export function follow(view, query, { onData, onRefused, onStatus }) {
  let source = null, timer = 0, turn = 0, ended = false;

  function open() {
    if (ended || source || document.hidden) return;
    turn += 1;
    source = new EventSource(`/api/events?${new URLSearchParams({ view, ...query() })}`);
    source.onmessage = (event) => {
      onStatus("live");
      onData(JSON.parse(event.data));
    };
    source.addEventListener("refused", (event) => {
      onStatus("live");
      onRefused(JSON.parse(event.data).error);
    });
    source.onerror = () => {
      const isRefused = source.readyState === EventSource.CLOSED;
      close();
      timer = setTimeout(open, isRefused ? RETRY_MS : RECONNECT_MS);
      if (isRefused) once();
      onStatus(isRefused ? "refused" : "lost");
    };
  }

  // Where no stream is to be had, the page shows how it is now, and says that this does not change. An answer that comes when
  // a stream is tried again is too late.
  function once() {
    const mine = turn;
    ask(view, query()).then((told) => mine === turn && onData(told), (error) => mine === turn && onRefused(error.message));
  }

  // A source that is closed tells nothing any more.
  function close() {
    clearTimeout(timer);
    turn += 1;
    source?.close();
    source = null;
  }

  function onVisibility() {
    if (document.hidden) {
      close();
      onStatus("paused");
    } else open();
  }

  document.addEventListener("visibilitychange", onVisibility);
  open();
  return () => {
    ended = true;
    document.removeEventListener("visibilitychange", onVisibility);
    close();
  };
}
