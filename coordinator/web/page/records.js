// Records of a topic: by partition, the newest, from an offset or a time on; as text, JSON or hex; and as they come.

import { h } from "./dom.js";
import { bytes, count, moment, plural } from "./format.js";
import { ask, follow } from "./live.js";

const LIMIT = 50, FOLLOWED = 200, KEPT = 500, PREVIEW = 300;
const FORMATS = [["auto", "as it fits"], ["text", "text"], ["json", "JSON"], ["hex", "hex"]];

// Looks after itself: it is made once for a topic and partition, and the page around it is drawn anew without it.
export function records(data, { query, memory }) {
  const partition = Math.min(Math.max(Number.parseInt(query.partition ?? "0", 10) || 0, 0), Math.max(data.partitions - 1, 0));
  const key = `records ${data.topic} ${partition}`, frame = { "data-own": true, "data-key": key };
  if (memory.records === key) return h("div", frame);
  memory.leave?.();
  memory.records = key;
  return browser(h("div", frame), data, partition, memory);
}

function browser(frame, data, partition, memory) {
  // What is shown: of a partition the rows between two offsets, and from where on; from "" nothing, until an answer is there.
  const state = { from: "", partition, rows: [], before: 0, next: 0, turn: 0, stop: null, format: "auto" };
  const list = h("ol", { class: "records", "aria-label": "Records" }), told = h("p", { class: "fine", role: "status" });
  const further = h("button", { type: "button", hidden: true, onclick: () => more() }, "Older records");
  const place = h("select", { onchange: () => show() }, Array.from({ length: Math.min(data.partitions, 1000) }, (_, index) =>
    h("option", { value: index, selected: index === partition }, String(index))));
  const from = h("select", { onchange: () => choose(from.value) },
    [["newest", "the newest"], ["offset", "an offset"], ["time", "a time"]].map(([value, text]) => h("option", { value }, text)));
  const offset = h("input", { type: "number", min: "0", step: "1", value: "0", "aria-label": "Offset", hidden: true });
  const time = h("input", { type: "datetime-local", step: "1", "aria-label": "Time", hidden: true });
  const format = h("select", { onchange: () => {
    state.format = format.value;
    draw();
  } }, FORMATS.map(([value, text]) => h("option", { value }, text)));
  const live = h("button", { type: "button", "aria-pressed": "false", onclick: () => (state.stop ? unfollow() : followOn()) }, "Follow live");

  frame.append(
    h("form", { class: "form", onsubmit: (event) => {
      event.preventDefault();
      show();
    } },
    h("label", {}, "Partition", place), h("label", {}, "Beginning with", from), offset, time,
    h("button", { type: "submit" }, "Show"), live, h("label", {}, "Shown", format)),
    told, list, h("p", {}, further));
  memory.leave = () => {
    state.turn += 1;
    unfollow();
  };
  show();
  return frame;

  function choose(value) {
    offset.hidden = value !== "offset";
    time.hidden = value !== "time";
    if (value === "newest") show();
  }

  function wanted() {
    if (from.value === "offset") return { from: "offset", offset: offset.value || "0" };
    if (from.value === "time") return { from: "time", time_ms: String(Math.max(0, new Date(time.value || 0).getTime() || 0)) };
    return { from: "newest" };
  }

  // Resolves to whether it is shown: not when it cannot be, or something else has been asked for meanwhile.
  async function show() {
    unfollow();
    state.from = "";
    const chosen = { from: from.value, partition: place.value };
    const answer = await load({ partition: place.value, ...wanted() });
    if (!answer) return false;
    const rows = chosen.from === "newest" ? answer.records.reverse() : answer.records;
    Object.assign(state, chosen, { rows, before: answer.before, next: answer.next });
    settle(answer);
    draw();
    return true;
  }

  // Further back from the newest, further on from an offset or a time.
  async function more() {
    const goesBack = state.from === "newest", { partition } = state;
    const where = goesBack ? { from: "before", offset: String(state.before) } : { from: "offset", offset: String(state.next) };
    const answer = await load({ partition, ...where });
    if (!answer) return;
    state.rows = [...state.rows, ...(goesBack ? answer.records.reverse() : answer.records)].slice(0, KEPT);
    if (goesBack) state.before = answer.before;
    else state.next = answer.next;
    settle(answer);
    draw();
  }

  // What is asked for last counts: an answer to an earlier question is none any more.
  async function load(what) {
    const turn = (state.turn += 1);
    further.disabled = true;
    let answer = null;
    try {
      answer = await ask("records", { topic: data.topic, limit: String(LIMIT), ...what });
      if (turn !== state.turn) return null;
    } catch (error) {
      if (turn !== state.turn) return null;
      told.textContent = error.message;
      if (!state.from) {
        state.rows = [];
        further.hidden = true;
        draw();
      }
    }
    further.disabled = false;
    return answer;
  }

  function settle(answer) {
    told.textContent = [answer.note, `The partition has the offsets ${count(answer.first)} to ${count(answer.end)}.`].filter(Boolean).join(". ");
    const isAll = state.from === "newest" ? state.before === answer.first : state.next === answer.end;
    further.hidden = isAll || state.rows.length >= KEPT;
    further.textContent = state.from === "newest" ? "Older records" : "Later records";
  }

  // Goes on behind the newest, also when the connection is a new one.
  async function followOn() {
    from.value = "newest";
    offset.hidden = time.hidden = true;
    if (state.from !== "newest" && !(await show())) return;
    live.setAttribute("aria-pressed", "true");
    live.textContent = "Stop following";
    const where = { topic: data.topic, partition: state.partition, from: "following", limit: String(FOLLOWED) };
    const query = () => ({ ...where, offset: String(state.next) });
    state.stop = follow("records", query, {
      onData: (answer) => {
        if (answer.skipped) told.textContent = `${plural(answer.skipped, "record")} came too fast and are left out.`;
        state.next = answer.next;
        if (!answer.records.length) return;
        if (!state.rows.length) list.replaceChildren();
        const fresh = answer.records.reverse();
        state.rows = [...fresh, ...state.rows].slice(0, KEPT);
        list.prepend(...fresh.map((row) => item(row)));
        while (list.children.length > KEPT) list.lastElementChild.remove();
        if (state.rows.length >= KEPT) further.hidden = true;
      },
      onRefused: (text) => (told.textContent = text),
      onStatus: (status) => (live.textContent = status === "refused" ? "Stop following, every 10 s" : "Stop following"),
    });
  }

  function unfollow() {
    state.stop?.();
    state.stop = null;
    live.setAttribute("aria-pressed", "false");
    live.textContent = "Follow live";
  }

  function draw() {
    list.replaceChildren(...state.rows.map((row) => item(row)));
    if (!state.rows.length && state.from) list.append(h("li", {}, h("p", { class: "empty" }, "There are no records here.")));
  }

  function item(row) {
    const head = [h("span", { class: "offset number" }, count(row.offset)), h("span", { class: "time" }, moment(row.time_ms))];
    if (row.marker) {
      return h("li", {}, h("details", {}, h("summary", {}, head, h("span", { class: "text key" }),
        h("span", { class: "text marker" }, `end marker: ${row.marker} of producer ${row.producer_id}`))));
    }
    const whole = h("div", { class: "whole" });
    return h("li", {}, h("details", { ontoggle: (event) => event.target.open && !whole.childNodes.length && fill(whole, row) },
      h("summary", {}, head, preview("text key", row.key), preview("text", row.value)), whole));
  }

  function preview(kind, content) {
    if (content === null) return h("span", { class: `${kind} null` }, kind === "text" ? "null" : "");
    const raw = decoded(content), [text, how] = shown(raw, state.format === "json" ? "text" : state.format, false);
    const line = how === "hex" ? codes(raw.subarray(0, 100)) : visible(text.slice(0, PREVIEW)).replace(/\s+/g, " ");
    return h("span", { class: kind }, line);
  }

  function fill(whole, row) {
    const { partition } = state, cut = row.key_size > size(row.key) || row.value_size > size(row.value);
    whole.replaceChildren(
      ...block("Key", row.key, row.key_size), ...block("Value", row.value, row.value_size),
      ...row.headers.flatMap((header) => block(`Header ${header.name}`, header.value, header.value_size)),
      ...(row.headers_total > row.headers.length ? [h("p", { class: "fine" }, `and ${row.headers_total - row.headers.length} more headers`)] : []),
      ...(row.transactional ? [h("p", { class: "fine" }, "Written in a transaction: it counts once an end marker of its producer says commit.")] : []),
      ...(cut && !row.whole ? [h("button", { type: "button", onclick: async () => {
        try {
          const answer = await ask("records", { topic: data.topic, partition, from: "offset", offset: String(row.offset), whole: "yes" });
          if (answer.records[0]?.offset !== row.offset) throw new Error("The record is not there any more.");
          fill(whole, { ...answer.records[0], whole: true });
        } catch (error) {
          told.textContent = error.message;
        }
      } }, "Show more of it")] : []));
  }

  function block(name, content, full) {
    if (content === null) return [h("h3", {}, `${name}: null`)];
    const raw = decoded(content), [text, how] = shown(raw, state.format, raw.length === full);
    const sizes = raw.length < full ? `the first ${bytes(raw.length)} of ${bytes(full)}` : bytes(full);
    return [h("h3", {}, `${name} · ${how} · ${sizes}`), h("pre", { tabindex: "0" }, visible(text))];
  }
}

function size(content) {
  return content === null ? -1 : decoded(content).length;
}

function decoded(content) {
  return Uint8Array.from(atob(content), (char) => char.charCodeAt(0));
}

// The bytes as text, and as what they are shown. JSON is laid out and otherwise left as it was written.
function shown(raw, format, isWhole) {
  if (format === "hex") return [hex(raw), "hex"];
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: isWhole && format === "auto", ignoreBOM: true }).decode(raw);
  } catch {
    return [hex(raw), "hex"];
  }
  if (format === "auto" && !isWhole && /[\u0000-\u0008\u000e-\u001f]/.test(text.slice(0, 200))) return [hex(raw), "hex"];
  if (format === "json" || (format === "auto" && /^\s*[[{]/.test(text))) {
    try {
      JSON.parse(text);
      return [laidOut(text), "JSON"];
    } catch {
      return [text, format === "json" ? "text, as it is no JSON" : "text"];
    }
  }
  return [text, "text"];
}

function codes(raw) {
  return Array.from(raw, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

function hex(raw) {
  const lines = [];
  for (let at = 0; at < raw.length; at += 16) {
    const part = [...raw.subarray(at, at + 16)];
    const chars = part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${codes(part).padEnd(48)} ${chars}`);
  }
  return lines.join("\n");
}

// New lines and indents around what stands there: numbers and keys stay as they were written.
function laidOut(text) {
  let out = "", depth = 0, quoted = false;
  const line = () => `\n${"  ".repeat(depth)}`;
  for (let at = 0; at < text.length; at += 1) {
    const char = text[at];
    if (quoted) {
      out += char;
      if (char === "\\") out += text[(at += 1)];
      else if (char === '"') quoted = false;
    } else if (char === '"') {
      quoted = true;
      out += char;
    } else if (char === "{" || char === "[") {
      const isEmpty = /^\s*[}\]]/.test(text.slice(at + 1, at + 50));
      depth += 1;
      out += isEmpty ? char : char + line();
    } else if (char === "}" || char === "]") {
      depth -= 1;
      out += /[{[]$/.test(out) ? char : line() + char;
    } else if (char === ",") out += char + line();
    else if (char === ":") out += ": ";
    else if (!/\s/.test(char)) out += char;
  }
  return out;
}

// Characters that would not be seen, or that would turn the text around them, as symbols.
function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f]/g, (char) => String.fromCharCode(0x2400 + char.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g, (char) => `‹${char.charCodeAt(0).toString(16)}›`);
}
