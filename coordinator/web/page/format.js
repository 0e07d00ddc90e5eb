// Numbers, times and names as people read them.

const COUNT = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
});

export const DASH = "–";

// Numbers that JavaScript would round come as text.
export function count(value) {
  if (typeof value === "string") return value;
  return value < 0 ? DASH : COUNT.format(value);
}

export function short(value) {
  return typeof value === "string" ? value : value < 0 ? DASH : value < 10000 ? COUNT.format(value) : SHORT.format(value);
}

export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

export function bytes(value) {
  if (value < 0) return DASH;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit && value < 100 ? value.toFixed(1).replace(/\.0$/, "") : Math.round(value)} ${units[unit]}`;
}

export function duration(ms) {
  if (ms < 0) return DASH;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  if (ms < 3_600_000) return two(ms, 60_000, "min", 1000, "s");
  return ms < 86_400_000 ? two(ms, 3_600_000, "h", 60_000, "min") : two(ms, 86_400_000, "d", 3_600_000, "h");
}

function two(ms, large, unit, small, lesser) {
  const rest = Math.floor((ms % large) / small);
  return `${Math.floor(ms / large)} ${unit}${rest ? ` ${rest} ${lesser}` : ""}`;
}

export function clock(ms) {
  return ms > 0 && ms < 8.64e15 ? CLOCK.format(new Date(ms)) : DASH;
}

export function moment(ms) {
  return ms >= 0 && ms < 8.64e15 ? DAY.format(new Date(ms)).replace(",", "") : DASH;
}

export function ago(ms) {
  return ms > 0 ? `${duration(Math.max(0, Date.now() - ms))} ago` : DASH;
}

// Partition numbers as ranges: 0–3, 7.
export function ranges(numbers) {
  const parts = [];
  for (let i = 0; i < numbers.length; ) {
    let last = i;
    while (last + 1 < numbers.length && numbers[last + 1] === numbers[last] + 1) last += 1;
    parts.push(last > i ? `${numbers[i]}–${numbers[last]}` : `${numbers[i]}`);
    i = last + 1;
  }
  return parts.join(", ");
}

// A member's id ends with what tells it from its like.
export function memberName(member) {
  if (member.instance) return member.instance;
  const tail = member.member.slice(-6);
  return member.client_id && member.member !== member.client_id ? `${member.client_id} …${tail}` : member.member;
}

export const KINDS = {
  member_joined: ["A member joined", "come"],
  member_left: ["A member left", "go"],
  member_changed: ["A member changed", "turn"],
  static_member_restarted: ["A static member restarted", "turn"],
  leader_asked: ["The leader asked for it", "turn"],
  session_timeout: ["A member’s session timed out", "fail"],
  rebalance_timeout: ["Members did not rejoin in time", "fail"],
  sync_timeout: ["Members did not sync in time", "fail"],
  group_full: ["The group was larger than it may be", "fail"],
};
