// What several sections are made of.

import { h, s } from "./dom.js";
import { count, DASH, duration, KINDS, moment, clock, short } from "./format.js";

export function href(section, query) {
  const text = new URLSearchParams(query ?? {}).toString();
  return `#/${section}${text ? `?${text}` : ""}`;
}

const STATES = {
  Stable: "good", PreparingRebalance: "busy", CompletingRebalance: "busy", Empty: "idle", Dead: "idle",
  Ongoing: "busy", PrepareCommit: "busy", PrepareAbort: "busy", CompleteCommit: "good", CompleteAbort: "idle",
};
const STATE_NAMES = {
  PreparingRebalance: "Rebalancing", CompletingRebalance: "Assigning", PrepareCommit: "Committing",
  PrepareAbort: "Aborting", CompleteCommit: "Committed", CompleteAbort: "Aborted", Ongoing: "Open",
};

export function stateName(state) {
  return STATE_NAMES[state] ?? state;
}

export function badge(state) {
  return h("span", { class: `badge ${STATES[state] ?? "idle"}`, title: state }, stateName(state));
}

export function facts(...pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value, note]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value, note ? h("small", {}, note) : null))));
}

export function section(title, ...content) {
  return h("section", {}, h("h2", {}, title), content);
}

export function empty(...text) {
  return h("p", { class: "empty" }, text);
}

export function notice(text) {
  return h("p", { class: "notice", role: "alert" }, text);
}

// Columns are [title, class, cell(row)]; on a phone each row is a card, and the titles stand before the cells.
export function table(label, columns, rows, key) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h("table", {},
      h("thead", {}, h("tr", {}, columns.map(([title, kind]) => h("th", { class: kind, scope: "col" }, title)))),
      h("tbody", {}, rows.map((row) => h("tr", { "data-key": key ? key(row) : null },
        columns.map(([title, kind, cell], index) =>
          h(index ? "td" : "th", { class: kind, scope: index ? null : "row", "data-title": title }, cell(row))))))));
}

export function pager(data, rows, go) {
  const last = data.start + rows;
  if (!data.start && last >= data.total) return null;
  const step = 50;
  return h("nav", { class: "pager", "aria-label": "Pages" },
    h("button", { type: "button", disabled: data.start <= 0, onclick: () => go(Math.max(0, data.start - step)) }, "← Previous"),
    h("span", { class: "number" }, rows ? `${count(data.start + 1)}–${count(last)} of ${count(data.total)}` : `${count(data.total)}`),
    h("button", { type: "button", disabled: last >= data.total, onclick: () => go(data.start + step) }, "Next →"));
}

// Opens the rest of a list, and closes it again.
export function more(isOpen, less, all, onclick) {
  return h("button", { type: "button", "aria-expanded": isOpen ? "true" : "false", onclick }, isOpen ? less : all);
}

export function search(label, value, onValue) {
  let timer = 0;
  return h("input", {
    type: "search", placeholder: label, "aria-label": label, value, spellcheck: "false", autocomplete: "off", id: "filter",
    oninput: (event) => {
      clearTimeout(timer);
      timer = setTimeout(() => onValue(event.target.value), 200);
    },
  });
}

export function choose(label, value, options, onValue) {
  return h("label", { class: "choose" }, h("span", {}, label),
    h("select", { onchange: (event) => onValue(event.target.value) },
      options.map(([name, text]) => h("option", { value: name, selected: name === value }, text))));
}

// A line of values over time, the newest at the right. `every` is the pause between two of them in seconds.
export function sparkline(values, every, label = "lag") {
  const points = values.map(Number);
  if (points.length < 2) return h("span", { class: "spark none", "aria-hidden": "true" }, "");
  const width = 96, height = 22, most = Math.max(...points, 1);
  const x = (index) => (width - 2) - (points.length - 1 - index) * ((width - 4) / Math.max(points.length - 1, 1));
  const y = (value) => height - 3 - (value / most) * (height - 6);
  const line = points.map((value, index) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`);
  const text = `${label} from ${short(points[0])} to ${short(points.at(-1))}, at most ${short(most === 1 ? Math.max(...points) : most)}, ` +
    `in the last ${duration(points.length * every * 1000)}`;
  return s("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": text },
    s("title", {}, text),
    s("polygon", { points: `${x(0).toFixed(1)},${height - 2} ${line.join(" ")} ${x(points.length - 1)},${height - 2}` }),
    s("polyline", { points: line.join(" ") }),
    s("circle", { cx: x(points.length - 1), cy: y(points.at(-1)), r: 1.8 }));
}

// One rebalance after the other, the newest first, each with its reason.
export function timeline(rebalances, withGroup) {
  return h("ol", { class: "timeline", "aria-label": "Rebalances, the newest first" }, rebalances.map((one) => {
    const [title, tone] = KINDS[one.kind] ?? [one.kind, "turn"];
    const outcome = {
      "": "going on", assigned: `took ${duration(one.took_ms)}`, emptied: "left the group empty",
      restarted: `began anew after ${duration(one.took_ms)}`, moved: "went on at another node",
    }[one.outcome];
    const change = one.members >= 0 ? `${count(one.before)} → ${count(one.members)} members` : null;
    return h("li", { class: tone, "data-key": `${one.group}@${one.began_ms}@${one.kind}` },
      h("time", { datetime: new Date(one.began_ms).toISOString(), title: moment(one.began_ms) }, clock(one.began_ms)),
      h("div", {},
        h("p", { class: "what" },
          withGroup ? [h("a", { href: href("group", { group: one.group }) }, one.group), " "] : null,
          h("strong", {}, title)),
        h("p", { class: "why" }, one.reason),
        h("p", { class: "meta" }, [change, one.generation >= 0 ? `generation ${one.generation}` : null, outcome]
          .filter(Boolean).join(" · ")),
        people("went", one.left.map(([name, why]) => (why ? `${name} (${why})` : name)), one.left_more),
        people("came", one.joined, one.joined_more)));
  }));
}

function people(verb, names, more) {
  if (!names.length) return null;
  return h("details", { class: "people" },
    h("summary", {}, `${names.length + more} ${verb}`),
    h("ul", {}, names.map((name) => h("li", {}, name)), more ? h("li", {}, `and ${count(more)} more`) : null));
}

// When rebalances happened, on an axis: the height of a mark is how long one took, its colour what began it.
export function strip(rebalances) {
  if (!rebalances.length) return null;
  const now = Date.now(), first = Math.min(...rebalances.map((one) => one.began_ms));
  const span = Math.max(60_000, (now - first) * 1.05), width = 1000, height = 56, base = 38;
  const x = (ms) => Math.max(2, width - ((now - ms) / span) * width);
  const longest = Math.max(...rebalances.map((one) => one.took_ms), 1);
  const ticks = [0, 0.25, 0.5, 0.75, 1];
  return h("div", { class: "strip" },
    s("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `${rebalances.length} rebalances in the last ${duration(now - first)}; the list below has each` },
      s("line", { x1: 0, x2: width, y1: base, y2: base, class: "axis" }),
      rebalances.map((one) => {
        const size = 8 + 26 * Math.sqrt(Math.max(one.took_ms, 0) / longest);
        return s("rect", { class: (KINDS[one.kind] ?? ["", "turn"])[1], x: x(one.began_ms) - 2.5, y: base - size, width: 5, height: size, rx: 2 },
          s("title", {}, `${clock(one.began_ms)} ${(KINDS[one.kind] ?? [one.kind])[0]}, ${one.outcome ? duration(one.took_ms) : "going on"}`));
      })),
    h("div", { class: "ticks", "aria-hidden": "true" },
      ticks.map((part) => h("span", {}, part === 1 ? "now" : clock(now - span * (1 - part))))));
}

export { DASH };
