// Numbers, times and states as people read them: as `inagg top` and `inagg why` write them.

const PREFIXES = ["", "k", "M", "G", "T", "P"];

// Three digits and a prefix: "0", "7.25", "842", "1.45 k", "23.1 M".
export function metric(value) {
  if (!value) return "0";
  if (value < 1) return value.toPrecision(2).replace(/\.?0+$/, "");
  let power = 0;
  while (value >= 999.5 && power < PREFIXES.length - 1) {
    value /= 1000;
    power += 1;
  }
  const text = value >= 99.95 ? value.toFixed(0) : value >= 9.995 ? value.toFixed(1) : value.toFixed(2);
  return power ? `${text} ${PREFIXES[power]}` : text.replace(/\.0+$/, "");
}

export const bits = (value) => `${metric(value)}bit/s`.replace(/^([\d.]+)bit/, "$1 bit");
export const bytes = (value) => `${metric(value)}B`.replace(/^([\d.]+)B/, "$1 B");
export const count = (value) => value.toLocaleString("en-US");
export const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

export function duration(seconds) {
  if (seconds < 1) return seconds < 0.0095 ? `${metric(seconds * 1000)} ms` : `${seconds.toFixed(2)} s`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const [m, s] = [Math.floor(seconds / 60), Math.floor(seconds % 60)];
  const two = (n) => String(n).padStart(2, "0");
  if (m < 60) return `${m}m ${two(s)}s`;
  const hours = Math.floor(m / 60);
  return hours < 24 ? `${hours}h ${two(m % 60)}m` : `${Math.floor(hours / 24)}d ${two(hours % 24)}h`;
}

export const span = (seconds) => `${seconds / 60} min`;
export const milliseconds = (seconds) => `${metric(seconds * 1000)} ms`;
export const clock = (date) => date.toLocaleTimeString("en-GB");

// A state in words, with a shape, so that nobody needs to see its colour.
export const JOB_STATES = {
  joining: ["◌", "joining", "wait"],
  binding: ["◌", "being set up", "wait"],
  running: ["●", "running", "good"],
  ending: ["◼", "ending", "plain"],
};
export const MEMBER_STATES = {
  unspecified: ["○", "not here yet", "wait"],
  waiting: ["◌", "waits to join", "wait"],
  active: ["●", "active", "good"],
  between: ["◌", "between epochs", "wait"],
  failed: ["✕", "failed", "bad"],
  left: ["◼", "left", "plain"],
};

export function ranks(numbers) {
  const runs = [];
  for (const rank of [...numbers].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && rank === last[1] + 1) last[1] = rank;
    else runs.push([rank, rank]);
  }
  if (!runs.length) return "no rank";
  const words = runs.map(([a, b]) => (a === b ? a : `${a}-${b}`)).join(", ");
  return `${runs.length === 1 && runs[0][0] === runs[0][1] ? "rank" : "ranks"} ${words}`;
}
