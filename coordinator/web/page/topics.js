// Topics, and one with its partitions and records.

import { h } from "./dom.js";
import { bytes, count } from "./format.js";
import { choose, empty, facts, href, more, notice, pager, search, section, table } from "./parts.js";
import { records } from "./records.js";

const SHOWN = 30;

export const topics = {
  view: "topics",
  title: () => "Topics",
  ask: ({ filter = "", internal = "no", start = "0" }) => ({ filter, internal, start }),

  draw(data, { query, go }) {
    return [
      h("h1", {}, "Topics", h("small", {}, count(data.total))),
      h("div", { class: "tools" },
        search("Filter by name", query.filter ?? "", (filter) => go({ filter, start: "" })),
        choose("Internal topics", query.internal ?? "no", [["no", "hidden"], ["yes", "shown"]],
          (internal) => go({ internal: internal === "no" ? "" : internal, start: "" }))),
      data.topics.length
        ? table("Topics", [
          ["Topic", "name", (row) => h("a", { href: href("topic", { topic: row.topic }) }, row.topic)],
          ["Partitions", "number", (row) => count(row.partitions)],
          ["Replicas", "number", (row) => count(row.replicas)],
          ["Records", "number", (row) => [count(row.records), row.led < row.partitions && row.records >= 0 ? "+" : ""]],
          ["Size", "number", (row) => bytes(row.bytes)],
          ["Cleanup", "", (row) => row.cleanup],
        ], data.topics, (row) => row.topic)
        : empty(query.filter ? "No topic is like this." : "There are no topics yet: cohort topics create lines --partitions 6 makes one."),
      pager(data, data.topics.length, (start) => go({ start: start || "" }, false)),
    ];
  },
};

export const topic = {
  view: "topic",
  title: ({ topic }) => topic ?? "Topic",
  identity: ({ topic }) => topic,
  ask: ({ topic = "" }) => ({ topic }),

  draw(data, context) {
    const { memory } = context;
    const settings = Object.entries(data.settings), faulty = data.rows.filter((row) => row.fault);
    return [
      h("p", { class: "crumb" }, h("a", { href: href("topics") }, "Topics")),
      h("h1", {}, data.topic),
      faulty.map((row) => notice(`Partition ${row.partition}: ${row.fault}`)),
      facts(
        ["Partitions", count(data.partitions), data.led < data.partitions ? `${count(data.led)} led by this node` : null],
        ["Replicas", count(data.replicas)],
        ["Records", count(data.records)],
        ["Size", bytes(data.bytes)],
        ["Cleanup", data.cleanup],
      ),
      settings.length
        ? h("p", { class: "fine" }, "Settings of its own: ", settings.map(([name, value]) => `${name}=${value}`).join(", "), ".") : null,
      section("Records", records(data, context)),
      section("Partitions",
        table("Partitions", [
          ["Partition", "", (row) => h("a", { href: href("topic", { topic: data.topic, partition: row.partition }) }, String(row.partition))],
          ["Leader", "number", (row) => (row.leader < 0 ? "none" : row.leader)],
          ["In sync", "more", (row) => `${row.in_sync.join(", ")}${row.in_sync.length < row.replicas.length ? ` of ${row.replicas.join(", ")}` : ""}`],
          ["First", "number", (row) => count(row.first)],
          ["End", "number", (row) => count(row.end)],
          ["LSO", "number more", (row) => h("span", { class: row.stable < row.end ? "warn" : null,
            title: row.stable < row.end ? "readers with read_committed wait here for an open transaction" : null }, count(row.stable))],
          ["Size", "number", (row) => bytes(row.bytes)],
        ], memory.all ? data.rows : data.rows.slice(0, SHOWN), (row) => String(row.partition)),
        data.rows.length > SHOWN ? more(memory.all, `Show the first ${SHOWN}`, `Show all ${count(data.rows.length)}`, () => {
          memory.all = !memory.all;
          context.redraw();
        }) : null,
        data.partitions > data.rows.length ? h("p", { class: "fine" }, `The first ${count(data.rows.length)} of ${count(data.partitions)}.`) : null),
    ];
  },
};
