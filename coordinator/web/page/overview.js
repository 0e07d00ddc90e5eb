// The node and its cluster at a glance, and what happened last.

import { h } from "./dom.js";
import { bytes, count, duration, plural, short } from "./format.js";
import { badge, empty, facts, href, notice, section, table, timeline } from "./parts.js";

export const overview = {
  view: "cluster",
  title: () => "Overview",
  ask: () => ({}),

  // Records a second, from one state to the next.
  seen(data, { memory }) {
    const before = memory.before;
    if (before && data.at_ms > before.at_ms) {
      memory.rate = Math.max(0, ((data.records_ever - before.records_ever) * 1000) / (data.at_ms - before.at_ms));
    }
    memory.before = data;
  },

  draw(data, { memory }) {
    const rate = memory.rate;
    const states = Object.entries(data.group_states).sort();
    return [
      h("h1", {}, "Overview"),
      data.damage ? notice(data.damage) : null,
      facts(
        ["Groups", h("a", { href: href("groups") }, count(data.groups)), plural(data.members, "member")],
        ["Topics", h("a", { href: href("topics") }, count(data.topics)), plural(data.partitions_led, "partition")],
        ["Records a second", rate === undefined ? "–" : short(Math.round(rate)), "while this page is open"],
        ["Stored", bytes(data.bytes), "on this node"],
        ["Connections", count(data.connections)],
        ["Up for", duration(Date.now() - data.started_ms), `version ${data.version}`],
      ),
      states.length
        ? h("p", { class: "states" }, states.map(([state, number]) =>
          h("a", { href: href("groups", { state }) }, badge(state), " ", h("span", { class: "number" }, count(number)))))
        : null,
      section("What happened last",
        data.rebalances.length ? timeline(data.rebalances.slice(0, 10), true)
          : empty("No group has rebalanced since this node was started.")),
      section(data.clustered ? "Nodes" : "Node",
        table("Nodes", [
          ["Node", "", (one) => [`${one.node}`, one.node === data.node_id ? h("small", {}, " this one") : null,
            one.node === data.controller && data.clustered ? h("small", {}, " controller") : null]],
          ["Address", "", (one) => (one.host ? `${one.host}:${one.port}` : "as it is reached")],
          ["Rack", "", (one) => one.rack || "–"],
          ["", "", (one) => (one.draining ? "is being emptied" : "")],
        ], data.nodes, (one) => String(one.node)),
        h("p", { class: "fine" }, `Cluster ${data.cluster_id}; metadata: ${data.metadata}. `,
          data.clustered ? "This page shows the groups, transactions and logs of this node; those of others are on their pages." : "")),
    ];
  },
};
