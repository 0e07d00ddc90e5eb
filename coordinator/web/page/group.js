// One group: who owns what, how far behind it is, and why it rebalanced.

import { h, s } from "./dom.js";
import { ago, count, DASH, memberName, plural, ranges, short } from "./format.js";
import { badge, empty, facts, href, more, section, sparkline, strip, table, timeline } from "./parts.js";
import { reset } from "./reset.js";

const SHOWN = 15, KEPT = 120, RECENT = 8;

export const group = {
  view: "group",
  title: ({ group }) => group ?? "Group",
  identity: ({ group }) => group,
  ask: ({ group = "" }) => ({ group }),

  // Lag by partition is remembered second by second while the page is open; that of the group comes with its past.
  seen(data, { memory }) {
    const lags = (memory.lags ??= new Map()), second = Math.floor(performance.now() / 1000);
    const passed = Math.min(KEPT, second - (memory.second ?? second - 1));
    memory.second = second;
    for (const row of data.partitions) {
      const name = `${row.topic}/${row.partition}`, known = lags.get(name) ?? [];
      for (let level = 1; level < passed; level += 1) known.push(known.at(-1) ?? Number(row.lag));
      if (passed) known.push(Number(row.lag));
      lags.set(name, known.slice(-KEPT));
    }
    if (data.partitions.some((row) => row.owner >= 0) || !data.members.length) memory.settled = data;
  },

  draw(data, context) {
    const { memory } = context;
    const assigned = memory.settled ?? data;
    return [
      h("p", { class: "crumb" }, h("a", { href: href("groups") }, "Groups")),
      h("h1", {}, h("bdi", {}, data.group), " ", badge(data.state)),
      h("p", { class: "lead" }, data.reason || "It has not rebalanced since this node was started."),
      facts(
        ["Members", count(data.members_total), data.pending_members ? `${plural(data.pending_members, "new one")} on the way` : null],
        ["Generation", count(data.generation)],
        ["Lag", [short(data.lag), " ", sparkline(data.lags, data.lag_every_s)],
          data.elsewhere ? `without ${plural(data.elsewhere, "partition")} of other nodes` : plural(data.partitions_total, "partition")],
        data.protocol ? ["Assignor", data.protocol] : null,
        data.empty_since_ms > 0 ? ["Empty", ago(data.empty_since_ms)] : null,
        data.transactions ? ["Open transactions", count(data.transactions), "that are to commit offsets"] : null,
      ),
      section("Rebalances",
        data.rebalances.length
          ? [strip(data.rebalances), timeline(data.rebalances.slice(0, memory.whole ? undefined : RECENT), false),
            data.rebalances.length > RECENT
              ? more(memory.whole, `Show the last ${RECENT}`, `Show all ${data.rebalances.length}`, () => {
                memory.whole = !memory.whole;
                context.redraw();
              })
              : null]
          : empty("None since this node was started.")),
      section("Who owns what", matrix(assigned, data, memory)),
      section("Lag by partition", partitions(data, context)),
      section("Members", members(data, assigned)),
      section("Reset offsets", reset(data, context)),
    ];
  },
};

function matrix(data, now, memory) {
  if (!data.members.length) return empty("The group has no members.");
  if (!data.partitions.some((row) => row.owner >= 0)) {
    return empty(now.protocol_type === "consumer" ? "Nothing is assigned at the moment." :
      `The shares of a group of type ${now.protocol_type || "unknown"} are its members’ own affair.`);
  }
  const columns = data.partitions, free = columns.filter((row) => row.owner < 0);
  const rows = [...data.members.map((member, index) => [memberName(member), index]), ...(free.length ? [["no owner", -1]] : [])];
  const size = 22, wide = Math.max(4, Math.min(18, Math.floor(920 / columns.length))), head = 34;
  const topics = [];
  columns.forEach((row, index) => {
    if (topics.at(-1)?.topic !== row.topic) topics.push({ topic: row.topic, first: index, last: index });
    else topics.at(-1).last = index;
  });
  const gap = 10, place = new Map();
  let x = 0;
  topics.forEach((topic) => {
    topic.x = x;
    for (let index = topic.first; index <= topic.last; index += 1) place.set(index, x + (index - topic.first) * wide);
    topic.width = (topic.last - topic.first + 1) * wide;
    x += topic.width + gap;
  });
  const width = Math.max(x - gap, 1), height = head + rows.length * size;
  const rowOf = new Map(rows.map(([, owner], index) => [owner, index]));
  const summary = `${plural(columns.length, "partition")} of ${plural(topics.length, "topic")}, ${plural(data.members.length, "member")}` +
    (free.length ? `, ${free.length} without an owner` : "") + "; the list of members says the same in words";
  const settled = data.generation === now.generation && now.state === "Stable";
  return [
    settled ? null : h("p", { class: "fine" }, `As in generation ${data.generation}, while the group rebalances.`),
    h("div", { class: settled ? "matrix" : "matrix old" },
      h("ul", { class: "rows", "aria-hidden": "true", style: { "padding-top": `${head}px` } },
        rows.map(([name, owner]) => h("li", { class: owner < 0 ? "free" : null, title: name, style: { height: `${size}px` } }, name))),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Who owns what" },
        s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": summary },
          topics.map((topic) => [
            s("text", { x: topic.x, y: 12, class: "topic" }, clip(topic.topic, topic.width)),
            s("title", {}, topic.topic),
            wide >= 18 ? columns.slice(topic.first, topic.last + 1).map((row, index) =>
              s("text", { x: topic.x + index * wide + wide / 2, y: 28, class: "partition" }, row.partition)) : null,
          ]),
          rows.map((_, index) => topics.map((topic) => s("rect", {
            x: topic.x, y: head + index * size + 2, width: topic.width, height: size - 4, class: "track",
          }))),
          columns.map((row, index) => s("rect", {
            x: place.get(index) + 1, y: head + rowOf.get(rowOf.has(row.owner) ? row.owner : -1) * size + 3,
            width: wide - 2, height: size - 6, rx: wide > 9 ? 3 : 1, class: row.owner < 0 ? "cell free" : `cell c${row.owner % 8}`,
          }, s("title", {}, `${row.topic}-${row.partition}: ${row.owner < 0 ? "no owner" : memberName(data.members[row.owner])}`)))))),
    data.members_total > data.members.length ? h("p", { class: "fine" }, `The first ${count(data.members.length)} of ${count(data.members_total)} members.`) : null,
    data.shares_unread ? h("p", { class: "fine" }, `${plural(data.shares_unread, "share")} cannot be read here: in a format of the members’ own, or too large.`) : null,
  ];
}

function clip(text, width) {
  const most = Math.max(3, Math.floor(width / 6.6));
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function partitions(data, { memory, redraw }) {
  if (!data.partitions.length) return empty("The group has neither shares nor committed offsets.");
  const sorted = [...data.partitions].sort((a, b) => b.lag - a.lag || (a.topic < b.topic ? -1 : a.topic > b.topic ? 1 : a.partition - b.partition));
  const rows = memory.all ? sorted : sorted.slice(0, SHOWN), most = Math.max(...sorted.map((row) => Number(row.lag)), 1);
  return [
    table("Lag by partition", [
      ["Partition", "name", (row) => h("a", { href: href("topic", { topic: row.topic, partition: row.partition }) }, `${row.topic}-${row.partition}`)],
      ["Owner", "", (row) => (data.members[row.owner] ? memberName(data.members[row.owner]) : DASH)],
      ["Committed", "number more", (row) => (row.committed < 0 ? "none" : count(row.committed))],
      ["End", "number more", (row) => (row.end < 0 ? "elsewhere" : count(row.end))],
      ["Lag", "number", (row) => short(row.lag)],
      ["", "bar", (row) => h("span", { class: "bar", "aria-hidden": "true" },
        h("span", { style: { width: `${Math.max(0, Math.min(100, (Number(row.lag) / most) * 100))}%` } }))],
      ["Since opened", "chart more", (row) => sparkline(memory.lags?.get(`${row.topic}/${row.partition}`) ?? [], 1)],
    ], rows, (row) => `${row.topic}/${row.partition}`),
    sorted.length > SHOWN
      ? more(memory.all, `Show the ${SHOWN} with the largest lag`, `Show all ${count(sorted.length)}`, () => {
        memory.all = !memory.all;
        redraw();
      })
      : null,
    data.partitions_total > sorted.length ? h("p", { class: "fine" }, `Those with the largest lag, of ${count(data.partitions_total)}.`) : null,
  ];
}

function members(data, assigned) {
  if (!data.members.length) return empty("None. Those that commit offsets without being members are not listed.");
  const owned = new Map();
  assigned.partitions.forEach((row) => {
    const owner = assigned.members[row.owner]?.member;
    if (owner === undefined) return;
    const topics = owned.get(owner) ?? new Map();
    topics.set(row.topic, [...(topics.get(row.topic) ?? []), row.partition]);
    owned.set(owner, topics);
  });
  return table("Members", [
    ["Member", "name", (row) => [memberName(row), row.member === data.leader ? h("small", {}, " leader") : null,
      data.waiting_for.includes(row.member) ? h("small", { class: "warn" }, " is waited for") : null]],
    ["Owns", "why", (row) => [...(owned.get(row.member) ?? [])].map(([topic, numbers]) => `${topic}: ${ranges(numbers)}`).join("; ") || DASH],
    ["Host", "", (row) => row.host || DASH],
    ["Client", "more", (row) => row.software || row.client_id || DASH],
    ["Id", "id more", (row) => row.member],
  ], data.members, (row) => row.member);
}
