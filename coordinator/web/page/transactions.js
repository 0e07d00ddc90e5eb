// Transactional ids: which transactions are open, since when, and where they write.

import { h } from "./dom.js";
import { ago, count, duration, plural, ranges } from "./format.js";
import { badge, choose, empty, facts, href, notice, pager, search, section, stateName, table } from "./parts.js";

export const transactions = {
  view: "transactions",
  title: () => "Transactions",
  ask: ({ filter = "", state = "", start = "0" }) => ({ filter, state, start }),

  draw(data, { query, go }) {
    const all = Object.values(data.states).reduce((sum, number) => sum + number, 0);
    const ended = Object.entries(data.ended).filter(([, number]) => number);
    return [
      h("h1", {}, "Transactions", h("small", {}, data.total === all ? count(all) : `${count(data.total)} of ${count(all)}`)),
      data.damage ? notice(data.damage) : null,
      ended.length ? h("p", { class: "lead" }, "Since the start of this node: ",
        ended.map(([how, number]) => `${count(number)} ${how.replaceAll("_", " ")}`).join(", "), ".") : null,
      h("div", { class: "tools" },
        search("Filter by transactional id", query.filter ?? "", (filter) => go({ filter, start: "" })),
        choose("State", query.state ?? "", [["", "any"], ...Object.entries(data.states).map(([state, number]) =>
          [state, `${stateName(state)} (${count(number)})`])], (state) => go({ state, start: "" }))),
      data.transactions.length
        ? table("Transactional ids", [
          ["Transactional id", "name", (row) => h("a", { href: href("transaction", { id: row.id }) }, row.id)],
          ["State", "", (row) => badge(row.state)],
          ["Open for", "number", (row) => (row.since_ms > 0 ? duration(Date.now() - row.since_ms) : "–")],
          ["Timeout", "number", (row) => duration(row.timeout_ms)],
          ["Producer", "number", (row) => `${row.producer_id} · ${row.epoch}`],
          ["Markers to write", "number", (row) => (row.waits ? count(row.waits) : "–")],
        ], data.transactions, (row) => row.id)
        : empty(all ? "No transactional id is like this." : "No producer has used a transactional_id."),
      pager(data, data.transactions.length, (start) => go({ start: start || "" }, false)),
    ];
  },
};

export const transaction = {
  view: "transaction",
  title: ({ id }) => id ?? "Transaction",
  identity: ({ id }) => id,
  ask: ({ id = "" }) => ({ id }),

  draw(data) {
    return [
      h("p", { class: "crumb" }, h("a", { href: href("transactions") }, "Transactions")),
      h("h1", {}, h("bdi", {}, data.id), " ", badge(data.state)),
      facts(
        data.since_ms > 0 ? ["Open since", ago(data.since_ms)] : null,
        ["Timeout", duration(data.timeout_ms)],
        ["Producer id", String(data.producer_id), `epoch ${data.epoch}`],
        data.previous ? ["The one before", data.previous] : null,
      ),
      section("Where it writes",
        data.members.length
          ? table("Where it writes", [
            ["Producer", "name", (row) => row.name || String(row.producer_id)],
            ["Since", "number", (row) => ago(row.since_ms)],
            ["Partitions", "why", (row) => row.topics.map(({ topic, partitions }) => `${topic}: ${ranges(partitions)}`).join("; ")],
          ], data.members, (row) => String(row.producer_id))
          : empty("No transaction is open."),
        data.members_total > data.members.length ? h("p", { class: "fine" }, `The first of ${plural(data.members_total, "producer")}.`) : null),
      data.waits_for.length
        ? section("End markers that are not written yet", h("ul", { class: "plain" }, data.waits_for.map((text) => h("li", {}, text))))
        : null,
    ];
  },
};
