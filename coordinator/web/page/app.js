// Finds the section that the address names, and keeps it up to date.

import { h, morph } from "./dom.js";
import { follow } from "./live.js";
import { notice } from "./parts.js";
import { overview } from "./overview.js";
import { groups } from "./groups.js";
import { group } from "./group.js";
import { topics, topic } from "./topics.js";
import { transactions, transaction } from "./transactions.js";

// A section says which view of the daemon it shows, its title, and how a state of the view is drawn.
const SECTIONS = { "": overview, groups, group, topics, topic, transactions, transaction };
const BELONGS = { group: "groups", topic: "topics", transaction: "transactions" };
const STATUS = { live: "live", lost: "no connection, trying again", refused: "not live", paused: "paused" };

const content = document.getElementById("content");
const live = document.getElementById("live");
let stop = () => {}, shown = "", tick = () => {};

// What is told in relation to now goes on while nothing changes: ages, axes, lines that stay level.
const TICK_MS = 5_000;
setInterval(() => document.hidden || !live.classList.contains("live") || live.textContent !== STATUS.live || tick(), TICK_MS);

function address() {
  const [name, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return [name in SECTIONS ? name : "", Object.fromEntries(new URLSearchParams(query ?? ""))];
}

// What is chosen on a page stands in its address, so that it can be sent to others and the back button works.
export function go(name, query, replaces) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined);
  const text = new URLSearchParams(kept).toString();
  const hash = `#/${name}${text ? `?${text}` : ""}`;
  if (replaces) {
    history.replaceState(null, "", hash);
    show();
  } else location.hash = hash;
}

// A page that is gone, or has nothing to show any more: what looks after itself on it ends, and is made anew if it comes back.
function forget(memory) {
  memory?.leave?.();
  for (const name of Object.keys(memory ?? {})) delete memory[name];
}

function show() {
  const [name, query] = address(), section = SECTIONS[name];
  const page = `${name}?${section.identity?.(query) ?? ""}`, isNew = page !== shown;
  stop();
  shown = page;
  if (isNew) forget(content.memory);
  const memory = isNew ? (content.memory = {}) : content.memory;
  document.title = `${section.title(query)} · Cohort`;
  for (const link of document.querySelectorAll("nav [data-section]")) {
    if (link.dataset.section === (BELONGS[name] ?? name)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (isNew) {
    morph(content, h("div", {}, h("p", { class: "empty" }, "…")));
    content.querySelectorAll("[data-own]").forEach((element) => element.remove());
    scrollTo(0, 0);
  }
  const context = {
    query, memory,
    go: (changes, replaces = true) => go(name, { ...query, ...changes }, replaces),
    redraw: () => memory.data && draw(memory.data),
  };
  const draw = (data) => morph(content, h("div", {}, section.draw(data, context)));
  tick = () => {
    if (!memory.data) return;
    section.seen?.(memory.data, context);
    draw(memory.data);
  };
  stop = follow(section.view, () => section.ask(query), {
    onData: (data) => {
      memory.data = data;
      section.seen?.(data, context);
      draw(data);
    },
    onRefused: (text) => {
      forget(memory);
      morph(content, h("div", {}, h("h1", {}, section.title(query)), notice(text)));
    },
    onStatus: (status) => {
      live.className = `live ${status}`;
      if (live.textContent !== STATUS[status]) live.textContent = STATUS[status];
    },
  });
  if (isNew && content.dataset.started) content.focus({ preventScroll: true });
  content.dataset.started = "yes";
}

addEventListener("hashchange", show);
addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.nodeName ?? "");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const filter = document.getElementById("filter");
    if (filter) {
      event.preventDefault();
      filter.focus();
    }
  }
});
show();
