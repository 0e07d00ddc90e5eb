// A reset of a group's offsets: first what it would do, then exactly that.

import { h } from "./dom.js";
import { count, plural } from "./format.js";
import { ask, change } from "./live.js";
import { table } from "./parts.js";

const TARGETS = [
  ["earliest", "the first record there is"], ["latest", "the end of the log"], ["time", "a time"],
  ["offset", "an offset"], ["shift", "so many records on or back"],
];

// Looks after itself, as the records do.
export function reset(data, { memory }) {
  const key = `reset ${data.group}`, frame = { "data-own": true, "data-key": key };
  if (memory.reset === key) return h("div", frame);
  memory.reset = key;
  return form(h("div", frame), data);
}

function form(frame, data) {
  const names = [...new Set(data.partitions.map((row) => row.topic))];
  const topic = h("select", {}, h("option", { value: "" }, "all it has committed"), names.map((name) => h("option", { value: name }, name)));
  const to = h("select", { "aria-label": "To", onchange: () => choose() }, TARGETS.map(([value, text]) => h("option", { value }, text)));
  const number = h("input", { type: "number", step: "1", value: "0", "aria-label": "Offset, or number of records", hidden: true });
  const time = h("input", { type: "datetime-local", step: "1", "aria-label": "Time", hidden: true });
  const result = h("div", { role: "status", "aria-label": "What the reset does" });
  frame.append(
    h("form", { class: "form", onsubmit: (event) => {
      event.preventDefault();
      plan();
    } },
    h("label", {}, "Topic", topic), h("label", {}, "To", to), number, time,
    h("button", { type: "submit" }, "Show what it would do")),
    result);
  return frame;

  function choose() {
    number.hidden = to.value !== "offset" && to.value !== "shift";
    time.hidden = to.value !== "time";
    result.replaceChildren();
  }

  function value() {
    if (to.value === "time") return String(Math.max(0, new Date(time.value || 0).getTime() || 0));
    return to.value === "offset" || to.value === "shift" ? number.value || "0" : "0";
  }

  async function plan() {
    result.replaceChildren(h("p", { class: "fine" }, "…"));
    try {
      const told = await ask("reset", { group: data.group, topic: topic.value, to: to.value, value: value() });
      result.replaceChildren(...shown(told));
    } catch (error) {
      result.replaceChildren(h("p", { class: "notice" }, error.message));
    }
  }

  function shown(told) {
    const moved = told.rows.filter((row) => typeof row.new === "string" || row.new >= 0);
    const changed = moved.filter((row) => row.new !== row.current);
    return [
      told.rows.length
        ? table("What the reset would do", [
          ["Partition", "name", (row) => `${row.topic}-${row.partition}`],
          ["Committed now", "number", (row) => (row.current < 0 ? "none" : count(row.current))],
          ["Then", "number", (row) => (row.new < 0 ? "unchanged" : count(row.new))],
          ["Moves by", "number", (row) => (row.new < 0 || row.current < 0 ? "–" : distance(row.new - row.current))],
          ["", "why", (row) => row.note],
        ], told.rows)
        : h("p", { class: "empty" }, "The group has committed nothing: choose a topic."),
      ...permission(told, changed),
    ];
  }

  function permission(told, changed) {
    if (!changed.length) return told.rows.length ? [h("p", { class: "fine" }, "Nothing would change.")] : [];
    if (told.blocked) return [h("p", { class: "notice mild" }, `It cannot be done now: ${told.blocked}.`)];
    if (!told.admin) {
      return [h("p", { class: "notice mild" }, "This page shows it only: the daemon was started without --http-admin yes. ",
        "The command does it: cohort groups reset-offsets.")];
    }
    const button = h("button", { type: "button", class: "danger", onclick: () => execute(button, changed) }, `Reset ${plural(changed.length, "offset")}`);
    return [h("p", {}, button)];
  }

  async function execute(button, changed) {
    button.disabled = true;
    const offsets = {};
    for (const row of changed) (offsets[row.topic] ??= []).push([row.partition, row.current, row.new]);
    try {
      const told = await change("reset", { group: data.group, offsets });
      result.replaceChildren(h("p", { class: "notice done" }, `Done: ${plural(told.changed, "offset")} reset.`),
        ...told.refused.map((text) => h("p", { class: "notice" }, text)));
    } catch (error) {
      const known = error.status >= 400 && error.status < 500;
      const what = known ? "Nothing was changed" : "It is not known whether offsets were changed, look again";
      result.replaceChildren(h("p", { class: "notice" }, `${what}: ${error.message}.`));
    }
  }
}

function distance(by) {
  return by > 0 ? `+${count(by)}` : by < 0 ? `−${count(-by)}` : "0";
}
