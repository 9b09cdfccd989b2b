// Charts over time, drawn as SVG: the last minutes, zero at the bottom, the newest at the right.

import { h } from "./dom.js";
import { span } from "./words.js";

// The windows that charts have, in seconds: the least that holds what there is.
export const WINDOWS_S = [60, 120, 300];

// `points` are [at_s, value], by time; `now` is at_s at the right edge; `gap_s`: points further apart are not joined.
export function chart(points, { now, window_s, gap_s, label, text, kind = "a", big = false, key }) {
  const [width, height] = big ? [900, 170] : [240, 44];
  const shown = points.filter(([at, value]) => now - at <= window_s && value !== null);
  const top = nice(Math.max(...shown.map(([, value]) => value), 0));
  const x = (at) => round(width * (1 - (now - at) / window_s));
  const y = (value) => round(height - 3 - ((height - 8) * value) / (top || 1));
  const runs = [];
  for (const point of shown) {
    const run = runs.at(-1);
    if (run && point[0] - run.at(-1)[0] <= gap_s) run.push(point);
    else runs.push([point]);
  }
  const lines = runs.map((run) => `M${run.map(([at, value]) => `${x(at)} ${y(value)}`).join("L")}${run.length > 1 ? "" : "h1"}`);
  const areas = runs.map((run, i) => `${lines[i]}V${height - 3}H${x(run[0][0])}Z`);
  const last = shown.at(-1);
  const grid = big ? [1, 0.5].map((share) => h("line", { class: "grid", x1: 0, x2: width, y1: y(top * share), y2: y(top * share) })) : [];
  const svg = h(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", class: `chart ${kind}`,
      "aria-label": `${label}: ${last ? `now ${text(last[1])}, at most ${text(Math.max(...shown.map(([, v]) => v)))}` : "nothing yet"}`,
    },
    grid,
    h("line", { class: "base", x1: 0, x2: width, y1: height - 3, y2: height - 3 }),
    h("path", { class: "area", d: areas.join("") }),
    h("path", { class: "line", d: lines.join("") }),
  );
  const read = shown.map(([at, value]) => [x(at) / width, now - at, text(value)]);
  return h(
    "div",
    { class: `plot${big ? " big" : ""}`, key, "data-points": JSON.stringify(read), "data-label": label },
    big ? [h("span", { class: "top" }, top ? text(top) : ""), h("span", { class: "left" }, `${span(window_s)} ago`), h("span", { class: "right" }, "now")] : [],
    svg,
  );
}

function nice(value) {
  if (!value) return 0;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value);
}

const round = (value) => Math.round(value * 10) / 10;

// Says what stands under the pointer, in words; what it gives is to be called when the charts have been drawn again.
export function readable(tip) {
  let plot = null, pointer = 0;
  function tell() {
    const points = plot?.isConnected ? JSON.parse(plot.dataset.points) : [];
    tip.hidden = !points.length;
    if (!points.length) return;
    const box = plot.getBoundingClientRect();
    const share = (pointer - box.left) / box.width;
    const [at, ago, text] = points.reduce((a, b) => (Math.abs(b[0] - share) < Math.abs(a[0] - share) ? b : a));
    tip.textContent = `${plot.dataset.label}: ${text}, ${Math.round(ago)} s ago`;
    const left = box.left + at * box.width - tip.offsetWidth / 2;
    tip.style.left = `${Math.max(4, Math.min(left, innerWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${scrollY + box.top - tip.offsetHeight - 4}px`;
  }
  function point(at, x) {
    plot = at;
    pointer = x;
    tell();
  }
  document.addEventListener("pointermove", (event) => point(event.target.closest?.(".plot"), event.clientX));
  document.documentElement.addEventListener("pointerleave", () => point(null, 0));
  return tell;
}
