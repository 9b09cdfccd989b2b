// What the page shows, as functions of what the switch has said: `say` is its last answer, `past` what came before.

import { chart } from "./charts.js";
import { h } from "./dom.js";
import * as w from "./words.js";

const state = ([shape, words, kind]) => h("span", { class: `state ${kind}` }, `${shape} ${words}`);
const th = (name, kind = "", title = null) => h("th", { class: kind, scope: "col", title }, name);
const td = (value, kind = "") => h("td", { class: kind }, value);

const gap = (say) => 2.5 * Math.max(say.interval_s, 1);

function plot(say, past, label, text, pick, more = {}) {
  const now = past.points.at(-1)?.at_s ?? say.at_s;
  return chart(past.points.map((point) => [point.at_s, pick(point)]), { now, window_s: past.window_s, gap_s: gap(say), label, text, ...more });
}

// --- throughput ---

export function figures(say, past) {
  const last = past.points.at(-1) ?? { elements: 0, bits_in: 0, bits_out: 0, cpu: 0, again: 0, drops: 0, jobs: [] };
  const trip = (point) => point.jobs.reduce((most, job) => (job.round_trip_s === null ? most : Math.max(most ?? 0, job.round_trip_s)), null);
  const trips = say.now.jobs.flatMap((job) => (job.workers ?? []).map((worker) => worker.round_trip_s)).filter((s) => s !== null);
  const elsewhere = say.now.driver !== "software";
  const tile = (name, value, pick, text, kind, title) =>
    h("div", { class: "tile", title }, h("div", { class: "name" }, name), h("div", { class: "value" }, value), plot(say, past, name, text, pick, { kind }));
  const each = (value) => `${w.metric(value)}/s`;
  const share = (value) => `${Math.round(100 * value)} %`;
  return [
    h(
      "div",
      { class: "tile hero" },
      h("div", { class: "name" }, "Elements summed, each once however many workers"),
      h("div", { class: "value" }, w.metric(last.elements), " ", h("small", {}, "a second")),
      plot(say, past, "Elements summed", each, (p) => p.elements, { big: true }),
    ),
    h(
      "div",
      { class: "tiles" },
      tile("Received", w.bits(last.bits_in), (p) => p.bits_in, w.bits, "b", "UDP payload, all shards of all switches"),
      tile("Sent", w.bits(last.bits_out), (p) => p.bits_out, w.bits, "b", "UDP payload; a multicast result counts once"),
      tile("Processors", elsewhere ? "not here" : share(last.cpu), (p) => p.cpu, share, "a", "Of the shards; 100 % is one core"),
      tile("Round trip", trips.length ? w.milliseconds(Math.max(...trips)) : "none yet", trip, w.milliseconds, "a",
        "The longest that a rank has told with its heartbeat: from a contribution to its result, so with the wait for the slowest rank"),
      tile("Sent again", each(last.again), (p) => p.again, each, "warn", "Datagrams that came twice or late, and results that were sent again"),
      tile("Dropped", each(last.drops), (p) => p.drops, each, "bad", "By the switch, for any reason, and by its kernel"),
    ),
  ];
}

// --- jobs ---

export function jobs(say, past) {
  if (!say.now.jobs.length) return [empty(say)];
  const points = new Map();
  for (const point of past.points) {
    for (const job of point.jobs) {
      if (!points.has(job.number)) points.set(job.number, []);
      points.get(job.number).push([point.at_s, job]);
    }
  }
  const whys = new Map(say.why.map((why) => [why.name, why]));
  return say.now.jobs.map((job) => card(say, past, job, whys.get(job.job.spec.name), points.get(job.job.job) ?? []));
}

function card(say, past, job, why, points) {
  const { spec } = job.job;
  const now = past.points.at(-1)?.at_s ?? say.at_s;
  const draw = (pick, label, text, kind = "a") =>
    chart(points.map(([at, point]) => [at, pick(point)]), { now, window_s: past.window_s, gap_s: gap(say), label, text, kind });
  const facts = [
    spec.format, w.plural(spec.workers, "worker"), `${w.count(spec.lanes)} lanes a block`, `window ${spec.window}`,
    job.job.epoch ? `epoch ${job.job.epoch}${job.job.epoch_age_s ? ` for ${w.duration(job.job.epoch_age_s)}` : ""}` : "no epoch yet",
    `created ${w.duration(job.job.age_s)} ago`,
  ];
  return h(
    "article",
    { class: "job", key: `job-${job.job.job}`, "aria-label": `Job ${spec.name}` },
    h(
      "div",
      { class: "head" },
      h("div", {}, h("div", { class: "title" }, h("h3", {}, spec.name), state(w.JOB_STATES[job.job.state] ?? ["?", job.job.state, "plain"])), h("p", { class: "quiet" }, facts.join(" · "))),
      h("div", { class: "value" }, w.metric(job.rates.elements), " ", h("small", {}, "elements/s")),
      draw((point) => point.elements, `Elements summed by ${spec.name}`, (value) => `${w.metric(value)}/s`),
    ),
    verdict(job, why),
    job.workers === null
      ? h("p", {}, h("button", { type: "button", "data-job": spec.name }, `Show its ${w.plural(spec.workers, "rank")}`))
      : workers(job, past, draw),
    job.trunks.length ? trunks(job) : null,
    why?.slots.length && why.verdict === "waits" ? slots(why) : null,
  );
}

function verdict(job, why) {
  if (!why) return null;
  if (why.verdict === "moves") {
    const oldest = Math.max(0, ...why.slots.map((slot) => slot.waiting_s));
    const words = why.slots_waiting
      ? [`Nothing waits; ${w.plural(why.slots_waiting, "slot")} in flight, the oldest for ${w.duration(oldest)}.`]
      : why.text;
    return h("div", { class: "verdict" }, h("span", { class: "state good" }, "✓ Moves"), " ", words.join(" "));
  }
  return h(
    "div",
    { class: "verdict waits" },
    h("span", { class: "state wait" }, h("b", {}, "◌ Waits")),
    h("ul", {}, why.text.map((sentence) => h("li", {}, sentence))),
  );
}

function workers(job, past, draw) {
  const tree = job.job.members.some((member) => member.switch);
  const rows = job.workers.map((worker) => {
    const member = job.job.members[worker.rank];
    const number = (name, kind = "") => td(w.count(worker[name]), `${kind}${worker.rates[name] ? " alarm" : ""}`);
    return h(
      "tr",
      { key: `rank-${worker.rank}` },
      td(worker.rank, "t"),
      td(state(w.MEMBER_STATES[member.state] ?? ["?", member.state, "plain"]), "t"),
      tree ? td(member.switch || "the root", "t") : null,
      td(w.bits(worker.rates.bits_in)),
      td(draw((point) => point.ranks[worker.rank] ?? 0, `Rank ${worker.rank} sends`, w.bits, "b"), "course"),
      td(`${w.metric(worker.rates.contributions)}/s`, "minor"),
      td(worker.round_trip_s === null ? "–" : w.milliseconds(worker.round_trip_s)),
      number("duplicates", "minor"),
      number("resends"),
      number("stale", "minor"),
      td(member.state === "unspecified" ? "–" : member.silent_s < 0.1 ? "now" : `${w.duration(member.silent_s)} ago`, "minor"),
    );
  });
  return h(
    "div",
    { class: "wide" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, th("Rank", "t"), th("State", "t"), tree ? th("Switch", "t") : null, th("Sends"), th(w.span(past.window_s), "course"),
        th("Blocks", "minor", "Contributions that went into a sum"), th("Round trip", "", "As the rank measures it, with the wait for the slowest rank"),
        th("Came twice", "minor", "Before the sum was complete"), th("Sent again", "", "Results that this rank had lost"),
        th("Late", "minor", "For a block that the job has left behind"), th("Heard", "minor"))),
      h("tbody", {}, rows),
    ),
  );
}

function trunks(job) {
  const rows = job.trunks.map((trunk) =>
    h("tr", {}, td(trunk.switch, "t"), td(`${w.metric(trunk.rates.partials)}/s`), td(w.count(trunk.partials)), td(w.count(trunk.partials_again), trunk.partials_again ? "alarm" : "")));
  return h("details", {}, h("summary", {}, "Between the switches"), h("div", { class: "wide" }, h("table", {},
    h("thead", {}, h("tr", {}, th("From switch", "t"), th("Partial sums"), th("In all"), th("Again"))), h("tbody", {}, rows))));
}

function slots(why) {
  const rows = why.slots.map((slot) =>
    h("tr", {}, td(`${slot.shard}`, "t"), td(w.count(slot.slot)), td(w.count(slot.generation)), td(w.duration(slot.waiting_s)), td(w.ranks(slot.missing), "t words")));
  const more = why.slots_waiting - why.slots.length;
  return h("details", {}, h("summary", {}, `${w.plural(why.slots_waiting, "slot")} with an incomplete sum: which, and for whom`),
    h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, th("Shard", "t"), th("Slot"), th("Generation"), th("Waits"), th("For", "t"))), h("tbody", {}, rows))),
    more > 0 ? h("p", { class: "quiet" }, `and ${w.plural(more, "slot")} that wait for less long (inagg why ${why.name} --slots N)`) : null);
}

function empty(say) {
  const needs = say.needs.length ? `, with ${say.needs.join(", ")}` : "";
  return h(
    "div",
    { class: "panel empty" },
    h("h3", {}, say.ended.length ? "No job runs now." : "No job yet: the switch is ready."),
    h("p", {}, "Start the workers of a PyTorch script that says ", h("code", {}, 'dist.init_process_group("inagg")'), `${needs}:`),
    h("pre", {}, h("code", {}, `INAGG_SWITCH=${say.control} torchrun --nproc-per-node 2 train.py`)),
    h("p", {}, "or, only to see something move, one worker that sums ones:"),
    h("pre", {}, h("code", {}, `python -c "import numpy; from inagg_host.allreduce import AllReduce
with AllReduce(switch='${say.control}', rank=0, workers=1, job='hello') as all_reduce:
    for _ in range(2000): all_reduce(numpy.ones(1 << 20, numpy.float32))"`)),
    h("p", { class: "quiet" }, "What this page shows, a terminal does too: inagg top, inagg jobs, inagg why."),
  );
}

// --- switches ---

// A notice for each shard, or switch below, that does not answer while others do. Seconds are no part of its key.
export function silent(say) {
  return say.now.silent.map((words) => h("p", { class: "notice bad", role: "alert", key: `silent-${words.replace(/\d+ s$/, "")}` },
    `▲ ${words[0].toUpperCase()}${words.slice(1)}: its figures are the last that it gave, or missing.`));
}

export function tree(say) {
  const shards = new Map();
  for (const shard of say.now.shards) {
    if (!shards.has(shard.switch)) shards.set(shard.switch, []);
    shards.get(shard.switch).push(shard);
  }
  const ranksAt = (name) => say.now.jobs.flatMap((job) => {
    const here = job.job.members.filter((member) => member.state !== "unspecified" && member.switch === name).map((member) => member.rank);
    return here.length ? [`${job.job.spec.name}: ${w.ranks(here)}`] : [];
  });
  const below = (name) => say.now.tree.filter((one) => one.parent === name).sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  const node = (name) => h(
    "li",
    { key: `switch-${name}` },
    box(say, name, shards.get(name) ?? [], ranksAt(name)),
    below(name).length ? h("ul", {}, below(name).map((one) => node(one.name))) : null,
  );
  return h("ul", { class: "tree" }, node(""));
}

function box(say, name, shards, here) {
  const sum = (pick) => shards.reduce((total, shard) => total + pick(shard), 0);
  const leased = sum((shard) => shard.slots_leased), all = sum((shard) => shard.slots);
  const kernel = sum((shard) => shard.kernel_drops), stuck = shards[0]?.slots_quarantined ?? 0;
  const elsewhere = !name && say.now.driver !== "software";
  return h(
    "div",
    { class: "node" },
    h("div", { class: "row" }, h("b", {}, name || (say.now.tree.length ? "the root, this switch" : "this switch")),
      h("span", { class: "quiet" }, shards.length ? w.plural(shards.length, "shard") : "says nothing of itself now")),
    shards.length
      ? h("div", { class: "row quiet" }, h("span", {}, `↓ ${w.bits(sum((s) => s.rates.bits_in))}`), h("span", {}, `↑ ${w.bits(sum((s) => s.rates.bits_out))}`),
          elsewhere ? null : h("span", {}, `${Math.round(100 * sum((s) => s.rates.cpu))} % of a core`),
          h("span", {}, `${w.count(leased)} of ${w.count(all)} slots leased`))
      : null,
    kernel ? h("div", { class: "alarm" }, `▲ its kernel has dropped ${w.count(kernel)}: more receive buffer (net.core.rmem_max), or more shards`) : null,
    stuck ? h("div", { class: "alarm" }, `▲ ${w.plural(stuck, "slot")} in quarantine: a shard has not dropped an ended job`) : null,
    here.map((words) => h("div", {}, words)),
  );
}

// --- lost and repeated ---

// Of what is no refusal; the switch says what the others mean.
const USUAL = {
  duplicate: "came twice before the sum was complete",
  stale: "came too late: the job had left the block behind",
};

export function lost(say) {
  const reasons = new Map();
  const add = (name, count, rate, words) => {
    const was = reasons.get(name) ?? { count: 0, rate: 0, words };
    reasons.set(name, { count: was.count + count, rate: was.rate + rate, words });
  };
  for (const shard of say.now.shards) {
    for (const [name, count] of Object.entries(shard.drops)) add(name, count, shard.rates.drops[name] ?? 0, USUAL[name] ?? say.meanings[name] ?? "damaged on its way, or no datagram of ours");
    if (shard.kernel_drops) add("kernel", shard.kernel_drops, shard.rates.kernel_drops, "the socket's receive buffer was full");
    if (shard.send_refused) add("send refused", shard.send_refused, shard.rates.send_refused, "the kernel did not take what the switch sent");
    for (const [name, count] of Object.entries(shard.faults)) {
      if (count) add(`${name} on purpose`, count, shard.rates.faults[name] ?? 0, "the switch was told to (--loss and the like)");
    }
  }
  const rows = [...reasons].filter(([, one]) => one.count).sort(([, a], [, b]) => b.count - a.count);
  const resent = say.now.jobs.reduce((sum, job) => sum + (job.workers ?? []).reduce((all, worker) => all + worker.resends, 0), 0);
  const again = resent ? h("p", { class: "quiet" }, `Results sent again to the jobs that run: ${w.count(resent)}.`) : null;
  if (!rows.length) return [h("p", {}, "✓ Nothing has been dropped."), again];
  const most = rows[0][1].count;
  return [
    h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, th("Dropped", "t"), th("In all"), th("Now"), th("", "minor"))),
      h("tbody", {}, rows.map(([name, one]) => h("tr", { key: `drop-${name}` },
        h("td", { class: "t words" }, name.replaceAll("_", " "), h("div", { class: "quiet" }, one.words)),
        td(w.count(one.count)), td(`${w.metric(one.rate)}/s`),
        h("td", { class: "minor" }, bar(one.count / most))))))),
    again,
  ];
}

function bar(share) {
  return h("svg", { class: "bar", viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" },
    h("rect", { width: Math.max(1, 100 * share), height: 6 }));
}

// --- events, ended jobs ---

const MOODS = { good: ["✓", "good"], plain: ["·", "plain"], bad: ["▲", "bad"] };

export function events(past) {
  if (!past.events.length) return h("p", { class: "quiet" }, "Nothing has happened yet: joins, epochs, stalls and ends appear here.");
  return h("ol", { class: "events" }, past.events.toReversed().map((event) => {
    const [shape, kind] = MOODS[event.mood];
    return h("li", { key: `event-${event.run}-${event.number}` },
      h("time", { datetime: event.when.toISOString() }, w.clock(event.when)),
      h("span", { class: `mood ${kind}`, "aria-label": event.mood }, shape),
      h("span", {}, event.job ? h("b", {}, `${event.job} `) : null, event.text));
  }));
}

export function ended(past) {
  if (!past.ended.length) return h("p", { class: "quiet" }, "No job has ended yet.");
  const rows = past.ended.map((job) => h("tr", { key: `ended-${job.key}` },
    h("td", { class: "t words" }, h("b", {}, job.name), h("div", { class: "quiet" }, `${job.spec.format}, ${w.plural(job.spec.workers, "worker")}; ${job.text}`)),
    td(w.clock(job.when)), td(w.duration(job.age_s), "minor"), td(job.epoch, "minor"),
    td(job.elements === null ? "–" : w.metric(job.elements)),
    h("td", { class: "minor" }, job.totals ? w.bytes(job.totals.bytes_in) : "–"),
    h("td", { class: "minor" }, job.totals ? w.count(job.totals.duplicates + job.totals.resends + job.totals.stale) : "–")));
  return h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, th("Job", "t"), th("Ended"), th("Lived", "minor"), th("Epochs", "minor"), th("Elements"), th("Received", "minor"), th("Again", "minor"))), h("tbody", {}, rows)));
}
