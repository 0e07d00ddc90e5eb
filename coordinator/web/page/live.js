// What the daemon tells: one view at a time, sent again whenever it changes, and nothing while the page is not seen.

const RETRY_MS = 10_000;

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
// Returns what ends it.
export function follow(view, query, { onData, onRefused, onStatus }) {
  const url = `/api/events?${new URLSearchParams({ view, ...query })}`;
  let source = null, timer = 0, ended = false;

  function open() {
    if (ended || source || document.hidden) return;
    source = new EventSource(url);
    source.onmessage = (event) => {
      if (ended) return;
      onStatus("live");
      onData(JSON.parse(event.data));
    };
    source.addEventListener("refused", (event) => {
      if (ended) return;
      onStatus("live");
      onRefused(JSON.parse(event.data).error);
    });
    source.onerror = () => {
      if (ended) return;
      onStatus(source?.readyState === EventSource.CLOSED ? "refused" : "lost");
      if (source?.readyState === EventSource.CLOSED) {
        close();
        once();
        timer = setTimeout(open, RETRY_MS);
      }
    };
  }

  // Where no stream is to be had, the page shows how it is now, and says that this does not change.
  function once() {
    ask(view, query).then((told) => ended || onData(told), (error) => ended || onRefused(error.message));
  }

  function close() {
    clearTimeout(timer);
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
