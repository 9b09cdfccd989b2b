// Asks the switch once a second what there is, keeps the course of the last minutes, and says when it does not answer.

import { readable, WINDOWS_S } from "./charts.js";
import { h, patch } from "./dom.js";
import * as view from "./view.js";
import { clock, duration } from "./words.js";

const EVENTS_KEPT = 500, ENDED_KEPT = 200, STORED = "inagg-secret", TIMEOUT_MS = 8000;
const place = (id) => document.getElementById(id);
const past = { run: "", look: 0, event: 0, points: [], events: [], ended: [], notes: 0, window_s: WINDOWS_S[0] };
const asked = new Set();
const drawn = readable(place("tip"));
let say = null, lostAt = null, secret = sessionStorage.getItem(STORED) ?? "", timer = 0;

class Refused extends Error {}

async function ask() {
  const query = new URLSearchParams({ run: past.run, look: past.look, event: past.event });
  for (const name of asked) query.append("job", name);
  const headers = secret ? { Authorization: `Bearer ${secret}` } : {};
  const reply = await fetch(`api/live?${query}`, { headers, signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store" });
  if (reply.status === 401) throw new Refused();
  if (!reply.ok) throw new Error((await reply.text()).trim());
  return reply.json();
}

function take(answer) {
  const when = (at_s) => new Date(Date.now() - (answer.at_s - at_s) * 1000);
  if (past.run && past.run !== answer.run) {
    note("the switch was started again; what stands below this line is of the run before, and counters begin anew");
    past.points = [];
    past.ended.forEach((job) => (job.before = true));
  }
  Object.assign(past, { run: answer.run, look: answer.look, event: answer.event });
  past.points = [...past.points, ...answer.points].filter((point) => answer.at_s - point.at_s <= WINDOWS_S.at(-1) + 10);
  const span_s = past.points.length ? past.points.at(-1).at_s - past.points[0].at_s : 0;
  past.window_s = WINDOWS_S.find((window_s) => span_s <= window_s) ?? WINDOWS_S.at(-1);
  past.events = [...past.events, ...answer.events.map((event) => ({ ...event, run: answer.run, when: when(event.at_s) }))].slice(-EVENTS_KEPT);
  const now = answer.ended.map((job) => ({ ...job, key: `${answer.run}-${job.job}-${job.name}`, when: new Date(Date.now() - job.ago_s * 1000) }));
  const keys = new Set(now.map((job) => job.key));
  const known = new Map(past.ended.map((job) => [job.key, job]));
  now.forEach((job) => (job.when = known.get(job.key)?.when ?? job.when));
  past.ended = [...now, ...past.ended.filter((job) => !keys.has(job.key))].slice(0, ENDED_KEPT);
  say = answer;
}

function note(text, mood = "plain") {
  past.notes += 1;
  past.events.push({ run: "page", number: past.notes, job: "", text, mood, when: new Date() });
}

function show() {
  place("main").hidden = !say;
  if (!say) return;
  const jobs = say.now.jobs.length;
  document.title = lostAt ? "(no answer) inagg" : `${jobs ? `${jobs} ${jobs === 1 ? "job" : "jobs"}` : "no job"} · inagg ${say.control}`;
  place("address").textContent = say.control;
  place("about").textContent = `${say.now.driver}, up ${duration(say.now.uptime_s + (say.at_s - say.now.at_s))}, inagg ${say.version}`;
  patch(place("notices"), notices());
  patch(place("figures"), view.figures(say, past));
  patch(place("jobs-list"), view.jobs(say, past));
  patch(place("tree"), view.tree(say));
  patch(place("lost"), view.lost(say));
  patch(place("events"), view.events(past));
  patch(place("ended"), view.ended(past));
  drawn();
}

function notices() {
  const found = [];
  const old_s = say.at_s - say.now.at_s;
  if (lostAt) found.push(h("p", { class: "notice bad", role: "alert", key: "lost" }, `✕ The switch has not answered since ${clock(lostAt)}. What you see is what it said last; this page asks again every second. Is inagg switch running?`));
  if (!lostAt && !say.healthy && !say.now.silent.length) found.push(h("p", { class: "notice bad", role: "alert", key: "ill" }, `▲ The control plane cannot read its data planes: the figures are ${duration(old_s)} old. See the switch's log.`));
  if (!lostAt) found.push(...view.silent(say));
  if (!lostAt && say.draining) found.push(h("p", { class: "notice warn", key: "drain" }, "◼ The switch takes no new jobs; those that run go on."));
  return found;
}

function link(words, kind) {
  place("link").className = `link ${kind}`;
  if (place("link").textContent !== words) place("link").textContent = words;
}

async function turn() {
  clearTimeout(timer);
  try {
    take(await ask());
    if (lostAt) note(`the switch answers again, after ${duration((Date.now() - lostAt) / 1000)}`, "good");
    lostAt = null;
    place("door").hidden = true;
    link(`● live, every ${say.interval_s === 1 ? "second" : duration(say.interval_s)}`, "good");
  } catch (error) {
    if (error instanceof Refused) {
      refused();
      return;
    }
    if (!lostAt && say) note("the switch does not answer", "bad");
    lostAt ??= new Date();
    link(`✕ no answer since ${clock(lostAt)}`, "bad");
    if (!say) patch(place("notices"), h("p", { class: "notice bad", role: "alert", key: "lost" }, `✕ ${error.message || error.name}. Trying again every second.`));
  }
  show();
  timer = setTimeout(turn, Math.max(500, Math.min(1000 * (say?.interval_s ?? 1), 5000)));
}

function refused() {
  place("wrong").textContent = secret ? "That is not the secret of this switch." : "";
  secret = "";
  sessionStorage.removeItem(STORED);
  link("◌ waits for the secret", "");
  place("main").hidden = true;
  patch(place("notices"));
  place("door").hidden = false;
  place("secret").focus();
}

place("door").addEventListener("submit", (event) => {
  event.preventDefault();
  secret = place("secret").value.trim();
  sessionStorage.setItem(STORED, secret);
  place("secret").value = "";
  turn();
});
document.addEventListener("click", (event) => {
  const name = event.target.closest?.("button[data-job]")?.dataset.job;
  if (name) {
    asked.add(name);
    turn();
  }
});
turn();
