// page.js - reads /api/v1/ and draws the page. Every text from the task is inserted with textContent, never as HTML.
"use strict";

const STATUS_MS = 1000, SLOW_MS = 3000, TASKS_SHOWN = 128, ITEMS_SHOWN = 12;
const PARTS = [["data", "waits for data"], ["compute", "compute"], ["reduce", "exposed all-reduce"], ["checkpoint", "checkpoint copy"]];
const PHASES_OF_WORK = new Set(["train", "evaluate", "save", "export"]);

const byId = (id) => document.getElementById(id);

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

function axisNumber(v) {
  const a = Math.abs(v);
  if (a >= 1e6) return Number((v / 1e6).toPrecision(3)) + "M";
  if (a >= 1e4) return Number((v / 1e3).toPrecision(3)) + "k";
  if (a !== 0 && a < 1e-3) return v.toExponential(0);
  return String(Number(v.toPrecision(3)));
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

const taskName = (t) => t.type === "local" ? "local" : t.type + " " + t.index;

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
  if (high === low) { high += Math.abs(high) * 0.1 || 1; low -= Math.abs(low) * 0.1; }
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

// points: [[step, value]]; second: a second curve in the same unit (evaluations).
function chart(card, title, points, options) {
  const { second = [], allowLog = false, secondName = "", note = "" } = options || {};
  const good = points.filter((p) => p[1] !== null), seconds = second.filter((p) => p[1] !== null), all = good.concat(seconds);
  const readout = element("span", { class: "quiet" });
  const head = element("div", { class: "chart-head" }, element("h2", {}, title), readout);
  card.hidden = false;
  if (all.length < 1) {
    card.replaceChildren(head, element("p", { class: "empty" }, "No step yet."));
    return;
  }
  const style = getComputedStyle(card);
  const width = Math.max(240, card.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight)), height = 190;
  const left = 46, right = width - 8, top = 8, bottom = height - 24;
  const steps = all.map((p) => p[0]);
  const x0 = Math.min(...steps), x1 = Math.max(...steps, x0 + 1);
  const x = (s) => left + (s - x0) / (x1 - x0) * (right - left);
  const y = scale(all.map((p) => p[1]), bottom, top, allowLog);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": title + " by step" });
  for (const v of y.ticks) {
    picture.append(svg("line", { class: "grid", x1: left, x2: right, y1: Math.round(y.at(v)), y2: Math.round(y.at(v)) }));
    picture.append(svg("text", { x: left - 8, y: y.at(v) + 4, "text-anchor": "end" }, axisNumber(v)));
  }
  for (const v of ticks(x0, x1, width > 420 ? 5 : 3)) {
    if (x(v) > right - 14 || v % 1 !== 0) continue;
    picture.append(svg("text", { x: x(v), y: height - 6, "text-anchor": x(v) < left + 14 ? "start" : "middle" }, axisNumber(v)));
  }
  const path = (list) => list.map((p, i) => (i ? "L" : "M") + x(p[0]).toFixed(1) + " " + y.at(p[1]).toFixed(1)).join("");
  if (good.length > 0) picture.append(svg("path", { class: "curve", d: path(good) }));
  if (seconds.length > 0) picture.append(svg("path", { class: "second", d: path(seconds) }));
  card.replaceChildren(head, picture);
  if (good.length > 0)
    hover(picture, readout, good, x, y, { top, bottom, width, note: note + (y.isLog ? ", log scale" : ""), seconds, secondName });
}

// Shows the values at the pointer, and those of the last point otherwise.
function hover(picture, readout, points, x, y, o) {
  const cross = svg("line", { class: "cross", y1: o.top, y2: o.bottom, visibility: "hidden" });
  const mark = svg("circle", { class: "mark", r: 4.5, visibility: "hidden" });
  picture.append(cross, mark);
  const show = (p, isHover) => {
    const text = "step " + p[0].toLocaleString("en-US") + ": " + number(p[1]);
    const other = isHover ? o.seconds.filter((d) => d[0] <= p[0]).pop() : o.seconds[o.seconds.length - 1];
    readout.replaceChildren(text);
    if (other) readout.append(" · ", element("i", { class: "data" }), o.secondName + " " + number(other[1]));
    if (!isHover) readout.append(o.note);
    cross.setAttribute("visibility", isHover ? "visible" : "hidden");
    mark.setAttribute("visibility", isHover ? "visible" : "hidden");
    cross.setAttribute("x1", x(p[0])); cross.setAttribute("x2", x(p[0]));
    mark.setAttribute("cx", x(p[0])); mark.setAttribute("cy", y.at(p[1]));
  };
  picture.addEventListener("pointermove", (e) => {
    const box = picture.getBoundingClientRect(), at = (e.clientX - box.left) / box.width * o.width;
    show(points.reduce((a, b) => Math.abs(x(b[0]) - at) < Math.abs(x(a[0]) - at) ? b : a), true);
  });
  picture.addEventListener("pointerleave", () => show(points[points.length - 1], false));
  show(points[points.length - 1], false);
}

let curve = null;

function drawCharts() {
  if (!curve || document.querySelector("svg:hover")) return; // a chart under the pointer stays as it is
  const column = (name) => curve.step.map((s, i) => [s, curve[name][i]]);
  const evaluations = curve.evaluations, measure = evaluations.length ? Object.keys(evaluations[0].metrics)[0] : undefined;
  chart(byId("chart-loss"), "Loss", column("loss"),
    { second: evaluations.map((e) => [e.step, e.loss]), secondName: "evaluation", allowLog: true });
  chart(byId("chart-speed"), "Samples per second", smooth(column("samples_per_second")), { note: ", smoothed" });
  chart(byId("chart-rate"), "Learning rate", column("learning_rate"));
  if (measure) chart(byId("chart-measure"), "Evaluation: " + measure, evaluations.map((e) => [e.step, e.metrics[measure]]));
  else byId("chart-measure").hidden = true;
}

// ---- status

function figure(name, value, note) {
  return element("div", {}, element("dt", {}, name), element("dd", {}, value, ...(note ? [element("small", {}, note)] : [])));
}

function drawHead(s) {
  const works = PHASES_OF_WORK.has(s.phase), badge = byId("state");
  document.title = s.job + " · " + (s.total_steps ? Math.floor(100 * s.step / s.total_steps) + " %" : s.phase) + " · trainerd";
  byId("job").textContent = s.job;
  badge.textContent = s.phase + (works ? "" : " for " + duration(s.phase_ms / 1000));
  badge.className = "badge " + (works || s.phase === "complete" ? "good" : "warn");
  byId("where").textContent = taskName(s.task) + (s.task.address ? " (" + s.task.address + ")" : "") + ", " + s.state +
    " · up " + duration(s.uptime_ms / 1000) + " · trainerd " + s.version;
  const follows = s.state === "following" && s.leader;
  byId("hint").hidden = !follows;
  if (follows) byId("hint").textContent = "This task follows " + taskName(s.leader) + " (" + s.leader.address +
    "), whose page shows all tasks.";
}

function drawFigures(s) {
  const share = s.total_steps ? s.step / s.total_steps : 0;
  const left = s.step_seconds > 0 && s.total_steps >= s.step ? s.step_seconds * (s.total_steps - s.step) : NaN;
  const measures = s.evaluation ? Object.entries(s.evaluation.metrics).map(([k, v]) => k + " " + number(v)).join(", ") : "";
  byId("done").style.width = (100 * share).toFixed(2) + "%";
  byId("done").parentElement.setAttribute("aria-valuenow", Math.floor(100 * share));
  byId("figures").replaceChildren(
    figure("Step", s.step.toLocaleString("en-US"), s.total_steps ? "of " + s.total_steps.toLocaleString("en-US") + ", epoch " + s.epoch : ""),
    figure("Loss", s.step ? number(s.loss) : "–", s.evaluation ? "evaluation " + number(s.evaluation.loss) + (measures ? ", " + measures : "") : ""),
    figure("Samples/s", number(s.samples_per_second), s.step_seconds > 0 ? duration(s.step_seconds) + " a step" : "no step is made"),
    figure("Time left", duration(left), ""),
    figure("Tasks", (s.view.length || (s.state === "alone" ? 1 : 0)) + " of " + s.tasks.length, "generation " + s.generation),
    figure("Lanes", String(s.lanes), "batch " + s.global_batch + ", " + s.devices));
}

function taskBadge(t) {
  const kinds = { active: "good", joined: "warn", missing: "bad", unknown: "" };
  return element("span", { class: "badge " + (kinds[t.state] || "") }, t.state);
}

function drawTask(t) {
  const facts = [];
  if (t.phase) facts.push(t.phase + " for " + duration(t.phase_ms / 1000));
  if (t.step) facts.push("step " + t.step.toLocaleString("en-US"));
  if (t.n_servers) facts.push(t.n_servers + (t.n_servers === 1 ? " service thread" : " service threads"));
  if (t.n_devices) facts.push(t.n_devices + (t.n_devices === 1 ? " device" : " devices"));
  if (t.lanes) facts.push(t.lanes + (t.lanes === 1 ? " lane" : " lanes"));
  if (t.heard_ms > 1000) facts.push("heard " + duration(t.heard_ms / 1000) + " ago");
  const about = element("div", {},
    element("div", { class: "line" }, element("b", {}, taskName(t.task)), taskBadge(t), element("span", { class: "quiet" }, t.task.address)),
    element("div", { class: "facts" }, facts.join(" · ")));
  for (const why of [t.last_error, t.last_trouble])
    if (why) about.append(element("div", { class: "trouble" }, why));
  return element("div", { class: "task" }, about, drawSplit(t.step_time));
}

function drawSplit(time) {
  if (!time) return element("div", { class: "shares" }, "");
  const bar = element("div", { class: "split" }), text = [];
  for (const [part] of PARTS) {
    const share = time[part];
    if (share > 0.002) {
      const piece = element("i", { class: part });
      piece.style.flex = share + " 1 0";
      bar.append(piece);
    }
    if (part !== "checkpoint" || share > 0) text.push((part === "reduce" ? "all-reduce" : part) + " " + duration(share * time.seconds) + " (" + Math.round(100 * share) + " %)");
  }
  return element("div", {}, bar, element("div", { class: "shares" }, text.join(" · ")));
}

function drawTasks(s) {
  const order = { missing: 0, joined: 1, unknown: 2, active: 3 };
  const sorted = s.tasks.length > TASKS_SHOWN ? [...s.tasks].sort((a, b) => order[a.state] - order[b.state]) : s.tasks;
  const more = s.tasks.length - TASKS_SHOWN;
  byId("tasks").replaceChildren(...sorted.slice(0, TASKS_SHOWN).map(drawTask));
  byId("tasks-note").textContent = "where the time of a step goes" + (more > 0 ? "; " + more + " further active tasks are not shown" : "");
}

function drawGpus(s) {
  byId("gpu-card").hidden = s.gpus.length === 0;
  byId("gpus").replaceChildren(...s.gpus.map((g) => {
    const facts = [];
    if (g.utilization !== undefined) facts.push(Math.round(100 * g.utilization) + " % busy");
    if (g.idle !== undefined) facts.push((100 * g.idle).toFixed(1) + " % of a step without work");
    if (g.memory_total_bytes) facts.push(bytes(g.memory_used_bytes) + " of " + bytes(g.memory_total_bytes));
    if (g.temperature_celsius !== undefined) facts.push(Math.round(g.temperature_celsius) + " °C");
    if (g.power_watts !== undefined) facts.push(Math.round(g.power_watts) + " W");
    if (g.throttled) facts.push("slowed down by: " + g.throttled);
    return element("div", { class: "task" }, element("div", {}, element("b", {}, "cuda:" + g.index + " " + g.name)),
      element("div", { class: "facts" }, facts.join(" · ")));
  }));
}

function none(text) {
  return element("li", { class: "none" }, text);
}

function drawCheckpoints(s) {
  const kinds = { verified: "good", failed: "bad", discarded: "warn", removed: "" };
  const items = [...s.checkpoints].reverse().slice(0, ITEMS_SHOWN).map((c) => element("li", {},
    element("span", { class: "when" }, clock(c.time_us)), "step " + c.step.toLocaleString("en-US"),
    element("span", { class: "badge " + kinds[c.state] }, c.state),
    element("span", { class: "why" }, c.reason || (bytes(c.bytes) + " in " + duration(c.seconds) + " · " + c.path))));
  if (items.length === 0)
    items.push(none(s.checkpoint_path ? "Newest: " + s.checkpoint_path : "This task has written no checkpoint yet."));
  byId("checkpoints").replaceChildren(...items);
}

// ---- events

// "generation 3: 2 of 3 tasks, led by worker 0 (worker 2 was lost)" -> [fact, cause]
function splitCause(message) {
  const at = message.indexOf(" (");
  return message.startsWith("generation ") && at > 0 && message.endsWith(")")
    ? [message.slice(0, at), message.slice(at + 2, -1)] : [message, ""];
}

function eventItem(r) {
  const [fact, cause] = splitCause(r.message), item = element("li", {}, element("span", { class: "when" }, clock(r.time_us)), fact);
  if (cause) item.append(element("span", { class: "why" }, cause));
  return item;
}

function drawEvents(events) {
  const newest = [...events.records].reverse();
  const members = newest.filter((r) => ["view", "group", "start", "resume", "signal"].includes(r.event)).slice(0, ITEMS_SHOWN);
  const warnings = newest.filter((r) => r.level === "warn" || r.level === "error").slice(0, 2 * ITEMS_SHOWN);
  byId("timeline").replaceChildren(...(members.length ? members.map(eventItem) : [none("No group yet.")]));
  byId("warnings").replaceChildren(...(warnings.length ? warnings.map((r) => {
    const item = element("li", {}, element("span", { class: "when" }, clock(r.time_us)), r.message);
    item.append(element("span", { class: "badge " + (r.level === "error" ? "bad" : "warn") }, r.level));
    return item;
  }) : [none("None.")]));
}

// ---- reading

async function read(path) {
  const r = await fetch(path, { cache: "no-store" });
  if (!r.ok) throw new Error("HTTP " + r.status);
  return r.json();
}

let heard = null, slowAt = 0;

async function readAll() {
  const s = await read("/api/v1/status");
  drawHead(s); drawFigures(s); drawTasks(s); drawGpus(s); drawCheckpoints(s);
  if (Date.now() - slowAt >= SLOW_MS) {
    const [c, e] = await Promise.all([read("/api/v1/curve"), read("/api/v1/events")]);
    curve = c;
    drawCharts();
    drawEvents(e);
    slowAt = Date.now();
  }
}

async function update() {
  const offline = byId("offline");
  if (!document.hidden) {
    try {
      await readAll();
      heard = new Date();
      offline.hidden = true;
      byId("updated").textContent = "Updated " + heard.toLocaleTimeString("en-GB");
      document.body.dataset.ready = "1";
    } catch (e) {
      offline.hidden = false;
      offline.textContent = "The task does not answer" + (heard ? " since " + heard.toLocaleTimeString("en-GB") : "") + ": " + e.message;
    }
  }
  setTimeout(update, STATUS_MS);
}

for (const [part, name] of PARTS) byId("legend").append(element("li", {}, element("i", { class: part }), name));
addEventListener("resize", drawCharts);
document.addEventListener("visibilitychange", () => { slowAt = 0; });
update();
