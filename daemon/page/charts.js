// charts.js - elements, numbers as text, and charts whose values are read by pointer and keyboard. Loaded before page.js.
"use strict";

function element(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) e.setAttribute(name, value);
  e.append(...children); // strings become text nodes
  return e;
}

function svg(tag, attributes, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) e.setAttribute(name, value);
  if (text !== undefined) e.textContent = text;
  return e;
}

// ---- numbers as text

function number(v) {
  if (v === null || v === undefined || !isFinite(v)) return "–";
  const a = Math.abs(v);
  if (a === 0) return "0";
  if (a >= 1e7 || a < 1e-4) return v.toExponential(2);
  if (a >= 1000) return Math.round(v).toLocaleString("en-US");
  return String(Number(v.toPrecision(4)));
}

// The labels of an axis: with as many digits as the ticks differ in, so that no two are equal.
function axisLabels(values) {
  const most = Math.max(...values.map(Math.abs)), steps = values.slice(1).map((v, i) => Math.abs(v - values[i]));
  const isLog = values.length > 2 && Math.abs(steps[1] / steps[0] - 1) > 0.5, power = (v) => Math.floor(Math.log10(v) + 1e-9);
  if (most === 0 || values.length < 2) return values.map(number);
  if (isLog) return values.map((v) => v >= 1e-3 && v < 1e5 ? String(Number(v.toPrecision(1))) : v.toExponential(0));
  const step = power(Math.min(...steps));
  if (most < 1e-3) return values.map((v) => v === 0 ? "0" : v.toExponential(Math.max(0, power(Math.abs(v)) - step)));
  const [unit, name] = most >= 1e6 ? [1e6, "M"] : most >= 1e4 ? [1e3, "k"] : [1, ""];
  const decimals = Math.min(12, Math.max(0, power(unit) - step));
  return values.map((v) => v === 0 ? "0" : (v / unit).toFixed(decimals) + name);
}

function duration(seconds) {
  if (!isFinite(seconds) || seconds < 0) return "–";
  if (seconds < 1e-3) return Math.round(seconds * 1e6) + " µs";
  if (seconds < 1) return Number((seconds * 1e3).toPrecision(3)) + " ms";
  if (seconds < 60) return Number(seconds.toPrecision(seconds < 10 ? 2 : 3)) + " s";
  const s = Math.round(seconds);
  if (s < 3600) return Math.floor(s / 60) + " min " + (s % 60) + " s";
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor((s % 86400) / 3600) + " h";
}

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i++; }
  return Number(n.toPrecision(3)) + " " + units[i];
}

function clock(timeUs) {
  const d = new Date(timeUs / 1000), today = new Date();
  const time = d.toLocaleTimeString("en-GB");
  return d.toDateString() === today.toDateString() ? time
    : d.toLocaleDateString("en-GB", { day: "numeric", month: "short" }) + " " + time;
}

// ---- charts

// Returns about n round numbers from low to high.
function ticks(low, high, n) {
  const raw = (high - low) / n, power = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const out = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) out.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return out;
}

function logTicks(low, high) {
  const out = [];
  for (let p = Math.ceil(Math.log10(low)); p <= Math.floor(Math.log10(high)); p++) out.push(Math.pow(10, p));
  return out.length >= 2 ? out : [low, high];
}

// A scale from values to pixels; logarithmic if the values are positive and span more than a factor of 50.
function scale(values, bottom, top, allowLog) {
  let low = Math.min(...values), high = Math.max(...values);
  const isLog = allowLog && low > 0 && high / low > 50;
  if (isLog) {
    const a = Math.log10(low), b = Math.log10(high);
    return { isLog, ticks: logTicks(low, high), at: (v) => bottom - (Math.log10(v) - a) / (b - a) * (bottom - top) };
  }
  if (low >= 0 && low < 0.7 * high) low = 0;
  if (high - low <= 1e-7 * Math.abs(high)) { high += Math.abs(high) * 0.1 || 1; low -= Math.abs(low) * 0.1; }
  return { isLog, ticks: ticks(low, high, 4), at: (v) => bottom - (v - low) / (high - low) * (bottom - top) };
}

// Means over a few neighbors: the speed of single steps varies much.
function smooth(points) {
  const reach = Math.min(6, Math.floor(points.length / 40));
  return points.map((p, i) => {
    const near = points.slice(Math.max(0, i - reach), i + reach + 1).filter((q) => q[1] !== null);
    return [p[0], near.length ? near.reduce((sum, q) => sum + q[1], 0) / near.length : null];
  });
}

const ruler = document.createElement("canvas").getContext("2d");

function textWidth(text, family) {
  ruler.font = "12px " + family;
  return ruler.measureText(text).width;
}

// The parts of a card that stay while its chart is drawn again, so that the focus and the step that is read stay too.
function chartParts(card, title) {
  if (card.parts) return card.parts;
  const readout = element("span", { class: "quiet" });
  const plot = element("div", { class: "plot", role: "slider", "aria-label": title + " by step; arrow keys, Home and End read the values" });
  const parts = card.parts = { readout, plot, at: null };
  card.replaceChildren(element("div", { class: "chart-head" }, element("h2", {}, title), readout), plot);
  plot.addEventListener("pointermove", (e) => {
    if (!parts.points) return;
    const box = plot.getBoundingClientRect(), at = (e.clientX - box.left) / box.width * parts.width;
    readAt(parts, parts.points.reduce((a, b) => Math.abs(parts.x(b[0]) - at) < Math.abs(parts.x(a[0]) - at) ? b : a)[0]);
  });
  plot.addEventListener("pointerleave", () => readAt(parts, null));
  plot.addEventListener("blur", () => readAt(parts, null));
  plot.addEventListener("keydown", (e) => {
    if (!parts.points) return;
    const last = parts.points.length - 1, now = parts.at === null ? last : nearest(parts.points, parts.at), page = Math.ceil(last / 10);
    const to = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageDown: now - page, PageUp: now + page,
      Home: 0, End: last, Escape: null }[e.key];
    if (to === undefined) return;
    e.preventDefault();
    readAt(parts, to === null ? null : parts.points[Math.max(0, Math.min(last, to))][0]);
  });
  return parts;
}

function nearest(points, step) {
  return points.reduce((best, p, i) => Math.abs(p[0] - step) < Math.abs(points[best][0] - step) ? i : best, 0);
}

// Shows the values at a step; those of the last point if it is null.
function readAt(parts, step) {
  const { points, seconds, plot, x, y } = parts, isRead = step !== null && points;
  parts.at = step;
  if (!points) return;
  const i = isRead ? nearest(points, step) : points.length - 1, p = points[i];
  const other = isRead ? seconds.filter((d) => d[0] <= p[0]).pop() : seconds[seconds.length - 1];
  const text = "step " + p[0].toLocaleString("en-US") + ": " + number(p[1]);
  parts.readout.replaceChildren(text);
  if (other) parts.readout.append(" · ", element("i", { class: "data" }), parts.secondName + " " + number(other[1]));
  if (!isRead) parts.readout.append(parts.note);
  plot.setAttribute("aria-valuemin", 1);
  plot.setAttribute("aria-valuemax", points.length);
  plot.setAttribute("aria-valuenow", i + 1);
  plot.setAttribute("aria-valuetext", parts.readout.textContent);
  for (const e of [parts.cross, parts.mark]) e.setAttribute("visibility", isRead ? "visible" : "hidden");
  parts.cross.setAttribute("x1", x(p[0])); parts.cross.setAttribute("x2", x(p[0]));
  parts.mark.setAttribute("cx", x(p[0])); parts.mark.setAttribute("cy", y.at(p[1]));
}

// points: [[step, value]]; second: a second curve in the same unit (evaluations).
function chart(card, title, points, options) {
  const { second = [], allowLog = false, secondName = "", note = "", dots = false } = options || {};
  const isGood = (p) => p[1] !== null, main = points.filter(isGood), others = second.filter(isGood);
  // without a first curve, as on the page of an evaluator, the second one is read
  const good = main.length ? main : others, seconds = main.length ? others : [], all = good.concat(seconds);
  const parts = chartParts(card, title);
  card.hidden = false;
  if (all.length < 1) {
    parts.points = null;
    parts.plot.removeAttribute("tabindex");
    parts.plot.replaceChildren(element("p", { class: "empty" }, "No step yet."));
    return;
  }
  parts.plot.setAttribute("tabindex", 0);
  const width = Math.max(240, parts.plot.clientWidth), height = 190, family = getComputedStyle(card).fontFamily;
  const y = scale(all.map((p) => p[1]), height - 24, 8, allowLog), labels = axisLabels(y.ticks);
  const left = Math.ceil(Math.max(...labels.map((text) => textWidth(text, family)))) + 14, right = width - 8, top = 8, bottom = height - 24;
  const steps = all.map((p) => p[0]), isOne = Math.min(...steps) === Math.max(...steps);
  const x0 = Math.min(...steps) - (isOne ? 1 : 0), x1 = Math.max(...steps) + (isOne ? 1 : 0);
  const x = (s) => left + (s - x0) / (x1 - x0) * (right - left);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
  y.ticks.forEach((v, i) => {
    picture.append(svg("line", { class: "grid", x1: left, x2: right, y1: Math.round(y.at(v)), y2: Math.round(y.at(v)) }));
    picture.append(svg("text", { x: left - 8, y: y.at(v) + 4, "text-anchor": "end" }, labels[i]));
  });
  const marks = isOne ? [steps[0]] : ticks(x0, x1, width > 420 ? 5 : 3).filter((v) => v % 1 === 0), names = axisLabels(marks);
  marks.forEach((v, i) => {
    const half = textWidth(names[i], family) / 2, anchor = x(v) - half < left ? "start" : x(v) + half > width ? "end" : "middle";
    picture.append(svg("text", { x: anchor === "end" ? width : x(v), y: height - 6, "text-anchor": anchor }, names[i]));
  });
  const path = (list) => list.map((p, i) => (i ? "L" : "M") + x(p[0]).toFixed(1) + " " + y.at(p[1]).toFixed(1)).join("");
  const draw = (list, kind, hasDots) => {
    if (list.length > 1) picture.append(svg("path", { class: kind, d: path(list) }));
    if (list.length === 1 || hasDots)
      for (const p of list) picture.append(svg("circle", { class: "dot " + kind, r: 3, cx: x(p[0]), cy: y.at(p[1]) }));
  };
  draw(good, main.length ? "curve" : "second", (dots || !main.length) && good.length <= 40);
  draw(seconds, "second", seconds.length <= 40);
  const cross = svg("line", { class: "cross", y1: top, y2: bottom }), mark = svg("circle", { class: "mark", r: 4.5 });
  picture.append(cross, mark);
  parts.plot.replaceChildren(picture);
  Object.assign(parts, { points: good, seconds, secondName, note: note + (y.isLog ? ", log scale" : ""), x, y, width, cross, mark });
  readAt(parts, parts.at);
}
