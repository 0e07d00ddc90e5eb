// All groups of the node.

import { h } from "./dom.js";
import { count, plural, short } from "./format.js";
import { badge, choose, empty, href, notice, pager, search, sparkline, stateName, table } from "./parts.js";

export const groups = {
  view: "groups",
  title: () => "Groups",
  ask: ({ filter = "", state = "", sort = "name", start = "0" }) => ({ filter, state, sort, start }),

  draw(data, { query, go }) {
    const all = Object.values(data.states).reduce((sum, number) => sum + number, 0);
    return [
      h("h1", {}, "Groups", h("small", {}, data.total === all ? count(all) : `${count(data.total)} of ${count(all)}`)),
      data.damage ? notice(data.damage) : null,
      h("div", { class: "tools" },
        search("Filter by name", query.filter ?? "", (filter) => go({ filter, start: "" })),
        choose("State", query.state ?? "", [["", "any"], ...Object.entries(data.states).map(([state, number]) =>
          [state, `${stateName(state)} (${count(number)})`])], (state) => go({ state, start: "" })),
        choose("Sort by", query.sort ?? "name", [["name", "name"], ["lag", "lag"], ["members", "members"]],
          (sort) => go({ sort: sort === "name" ? "" : sort, start: "" }))),
      data.groups.length
        ? table("Groups", [
          ["Group", "name", (row) => h("a", { href: href("group", { group: row.group }) }, row.group)],
          ["State", "", (row) => badge(row.state)],
          ["Members", "number", (row) => count(row.members)],
          ["Lag", "number", (row) => h("span", { title: row.elsewhere ? `without ${plural(row.elsewhere, "partition")} of other nodes` : null },
            short(row.lag), row.elsewhere ? "+" : "")],
          ["Last 15 min", "chart", (row) => sparkline(row.lags, data.lag_every_s)],
          ["Why it rebalanced last", "why", (row) => row.reason || "–"],
        ], data.groups, (row) => row.group)
        : empty(all ? "No group is like this." : "There are no groups yet: a consumer with a group_id makes one."),
      pager(data, data.groups.length, (start) => go({ start: start || "" }, false)),
    ];
  },
};
