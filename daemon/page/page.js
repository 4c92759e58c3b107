// page.js - reads /api/v1/ and draws the page. Every text from the task is inserted with textContent, never as HTML.
"use strict";

const STATUS_MS = 1000, SLOW_MS = 3000, ITEMS_SHOWN = 12;
const FULL_TASKS = 16; // more tasks are shown in compact form, but for those with a problem
const PARTS = [["data", "waits for data"], ["compute", "compute"], ["reduce", "exposed all-reduce"], ["checkpoint", "checkpoint copy"]];
const PHASES_OF_WORK = new Set(["train", "evaluate", "save", "export", "serve", "wait for a checkpoint"]);
const ENDS = { complete: "The job is complete.", stopped: "The task has ended", failed: "The task has failed" };

const byId = (id) => document.getElementById(id);

const taskName = (t) => t.type === "local" ? "local" : t.type + " " + t.index;

// ---- charts of the run

let curve = null;

function drawCharts() {
  if (!curve) return;
  const column = (name) => curve.step.map((s, i) => [s, curve[name][i]]);
  const evaluations = curve.evaluations, measure = evaluations.length ? Object.keys(evaluations[0].metrics)[0] : undefined;
  const hasSteps = curve.step.length > 0, isTraining = !latest || TRAINS(latest.task);
  chart(byId("chart-loss"), "Loss", column("loss"),
    { second: evaluations.map((e) => [e.step, e.loss]), secondName: "evaluation", allowLog: true });
  chart(byId("chart-speed"), "Samples per second", smooth(column("samples_per_second")), { note: ", smoothed" });
  chart(byId("chart-rate"), "Learning rate", column("learning_rate"));
  if (measure) chart(byId("chart-measure"), "Evaluation: " + measure, evaluations.map((e) => [e.step, e.metrics[measure]]), { dots: true });
  else byId("chart-measure").hidden = true;
  // a ps task makes no steps, an evaluator has only evaluations
  for (const id of ["chart-speed", "chart-rate"]) byId(id).hidden = !hasSteps && !isTraining;
  byId("chart-loss").hidden = !hasSteps && !isTraining && evaluations.length === 0;
}

// ---- status

function figure(name, value, note) {
  return element("div", {}, element("dt", {}, name), element("dd", {}, value, ...(note ? [element("small", {}, note)] : [])));
}

const TRAINS = (task) => task.type !== "ps" && task.type !== "evaluator";

function drawHead(s) {
  const works = PHASES_OF_WORK.has(s.phase), isEnd = s.phase in ENDS, badge = byId("state");
  document.title = s.job + " · " + (isEnd || !s.total_steps ? s.phase : Math.floor(100 * s.step / s.total_steps) + " %") + " · trainerd";
  byId("job").textContent = s.job;
  badge.textContent = s.phase + (works || isEnd ? "" : " for " + duration(s.phase_ms / 1000));
  badge.className = "badge " + (works || s.phase === "complete" ? "good" : s.phase === "failed" ? "bad" : "warn");
  byId("where").textContent = taskName(s.task) + (s.task.address ? " (" + s.task.address + ")" : "") + ", " + s.state +
    " · up " + duration(s.uptime_ms / 1000) + " · trainerd " + s.version;
  drawHint(s);
  drawEnd(s);
}

// A page that listens on the loopback interface of another host has no link, because it would lead to this machine.
function drawHint(s) {
  const hint = byId("hint"), follows = s.state === "following" && s.leader && !(s.phase in ENDS);
  hint.hidden = !follows;
  if (!follows) return;
  const host = (address) => address.slice(0, address.lastIndexOf(":")), isLocal = /^(127\.|localhost:|\[::1\]:)/.test(s.leader_page);
  hint.replaceChildren("This task follows " + taskName(s.leader) + " (" + s.leader.address + "), whose page shows all tasks: ");
  if (!s.leader_page) hint.append("it serves none (--metrics).");
  else if (isLocal && host(s.leader.address) !== host(s.task.address))
    hint.append("http://" + s.leader_page + "/ on its host, such as by ssh -L 9090:" + s.leader_page + " " + host(s.leader.address));
  else hint.append(element("a", { href: "http://" + s.leader_page + "/" }, "http://" + s.leader_page + "/"));
}

// How the task ended, as its last document states.
function drawEnd(s) {
  const end = byId("end");
  end.hidden = !(s.phase in ENDS);
  if (end.hidden) return;
  end.className = "notice " + { complete: "good", stopped: "", failed: "bad" }[s.phase];
  end.textContent = ENDS[s.phase] + (s.phase === "complete" ? " Its last step is " + s.step.toLocaleString("en-US") + "." : ": " + s.last_trouble);
}

function memoryNote(s) {
  return s.memory ? bytes(s.memory.used_bytes) + " of " + bytes(s.memory.limit_bytes) + " in use" : "";
}

function count(n, one, many) {
  return n.toLocaleString("en-US") + " " + (n === 1 ? one : many || one + "s");
}

// A parameter server: its rows instead of the figures of training.
function serverFigures(s) {
  const p = s.server, tables = p.tables.map((t) => t.name + " " + count(t.rows, "row")).join(", ");
  return [
    figure("Rows after step", p.version.toLocaleString("en-US"), s.total_steps ? "of " + s.total_steps.toLocaleString("en-US") : ""),
    figure("Shards", p.shards.toLocaleString("en-US"), p.copying ? p.copying + " are being copied" : "of 1,024, all complete"),
    figure("Memory of rows", bytes(p.bytes), memoryNote(s)),
    figure("Rows sent", p.rows_read.toLocaleString("en-US"), "since the start of the process"),
    figure("Gradients of rows", p.rows_updated.toLocaleString("en-US"), "since the start of the process"),
    tables ? figure("Dynamic tables", String(p.tables.length), tables)
      : figure("Staleness", count(p.staleness, "step"), p.bounded ? "at most" : ""),
  ];
}

function drawFigures(s) {
  const share = s.phase === "complete" ? 1 : s.total_steps ? s.step / s.total_steps : 0;
  const left = s.step_seconds > 0 && s.total_steps >= s.step ? s.step_seconds * (s.total_steps - s.step) : NaN;
  const measures = s.evaluation ? Object.entries(s.evaluation.metrics).map(([k, v]) => k + " " + number(v)).join(", ") : "";
  const missing = s.phase in ENDS ? [] : s.tasks.filter((t) => t.state === "missing").map((t) => taskName(t.task));
  byId("done").style.width = (100 * share).toFixed(2) + "%";
  byId("done").parentElement.setAttribute("aria-valuenow", Math.floor(100 * share));
  byId("done").parentElement.hidden = !!s.server;
  const isOver = s.phase in ENDS, present = s.view.length || (s.state === "alone" ? 1 : 0);
  const tasks = figure("Tasks", isOver ? String(s.tasks.length) : present + " of " + s.tasks.length,
    missing.length ? "missing: " + missing.slice(0, 3).join(", ") + (missing.length > 3 ? " and " + (missing.length - 3) + " others" : "")
      : isOver ? "" : "generation " + s.generation);
  if (missing.length) tasks.classList.add("bad");
  byId("figures").replaceChildren(...(s.server ? serverFigures(s) : [
    figure("Step", (TRAINS(s.task) ? s.step : s.evaluation ? s.evaluation.step : 0).toLocaleString("en-US"), s.total_steps ? "of " + s.total_steps.toLocaleString("en-US") + (TRAINS(s.task) ? ", epoch " + s.epoch : "") : ""),
    figure("Loss", s.loss !== null && s.step && TRAINS(s.task) ? number(s.loss) : s.evaluation ? number(s.evaluation.loss) : "–",
      s.evaluation ? (TRAINS(s.task) ? "evaluation " + number(s.evaluation.loss) + (measures ? ", " : "") : "of the evaluation" + (measures ? ", " : "")) + measures : ""),
    ...(TRAINS(s.task) ? [
      figure("Samples/s", isOver ? "–" : number(s.samples_per_second), s.step_seconds > 0 ? duration(s.step_seconds) + " a step" : isOver ? "" : "no step is made"),
      figure("Time left", s.phase === "complete" ? "0 s" : isOver ? "–" : duration(left), ""),
      tasks] : []),
    figure("Lanes", String(s.lanes), "batch " + s.global_batch + ", " + s.devices)]));
}

// ---- tasks: those with a problem first; many tasks in compact form

const ORDERS = {
  problems: ["problems first", (a, b) => problem(b)[0] - problem(a)[0]],
  name: ["by name", () => 0], // the order of the cluster
  slow: ["slowest first", (a, b) => ownSeconds(b) - ownSeconds(a)],
  silent: ["longest silent first", (a, b) => b.heard_ms - a.heard_ms],
};
let slowLimit = Infinity; // seconds of compute and data from which a task is slow, in the last status

// The time of a step without the waits for others.
function ownSeconds(t) {
  return t.step_time ? t.step_time.seconds * (1 - t.step_time.reduce) : -1;
}

function findSlowLimit(tasks) {
  const times = tasks.map(ownSeconds).filter((v) => v > 0).sort((a, b) => a - b);
  slowLimit = times.length >= 3 ? 1.5 * times[Math.floor(times.length / 2)] : Infinity;
}

// [severity, word]; 0: no problem
function problem(t) {
  if (t.state === "missing") return [5, "missing"];
  if (t.quarantine_ms > 0) return [4, "quarantined"];
  if (t.state === "joined" && TRAINS(t.task)) return [3, "joined"];
  if (t.last_error || t.last_trouble) return [2, "trouble"];
  if (ownSeconds(t) > slowLimit) return [1, "slow"];
  return [0, t.state];
}

function isOver() {
  return latest.phase in ENDS;
}

function taskBadge(t) {
  const [severity, word] = isOver() ? [0, "ended"] : problem(t);
  const kind = severity >= 4 ? "bad" : severity > 0 ? "warn" : t.state === "active" && !isOver() ? "good" : "";
  return element("span", { class: "badge " + kind }, severity > 0 && severity < 3 ? t.state + ", " + word : word);
}

function drawTask(t) {
  const facts = [];
  if (t.phase && !isOver()) facts.push(t.phase + " for " + duration(t.phase_ms / 1000));
  if (t.step) facts.push("step " + t.step.toLocaleString("en-US"));
  if (t.n_servers) facts.push(count(t.n_servers, "service thread"));
  if (t.n_devices) facts.push(count(t.n_devices, "device"));
  if (t.lanes) facts.push(count(t.lanes, "lane"));
  if (t.heard_ms > 1000 && !isOver()) facts.push("heard " + duration(t.heard_ms / 1000) + " ago");
  const about = element("div", {},
    element("div", { class: "line" }, element("b", {}, taskName(t.task)), taskBadge(t), element("span", { class: "quiet" }, t.task.address)),
    element("div", { class: "facts" }, facts.join(" · ")));
  for (const why of [t.last_error, t.last_trouble])
    if (why && !isOver()) about.append(element("div", { class: "trouble" }, why));
  return element("div", { class: "task" + (problem(t)[0] >= 4 && !isOver() ? " bad" : "") }, about, drawSplit(t.step_time));
}

function splitBar(time) {
  const bar = element("div", { class: "split" });
  for (const [part] of PARTS)
    if (time && time[part] > 0.002) {
      const piece = element("i", { class: part });
      piece.style.flex = time[part] + " 1 0";
      bar.append(piece);
    }
  return bar;
}

function drawSplit(time) {
  if (!time) return element("div", { class: "shares" }, "");
  const text = PARTS.filter(([part]) => part !== "checkpoint" || time[part] > 0).map(([part]) =>
    (part === "reduce" ? "all-reduce" : part) + " " + duration(time[part] * time.seconds) + " (" + Math.round(100 * time[part]) + " %)");
  return element("div", {}, splitBar(time), element("div", { class: "shares" }, text.join(" · ")));
}

function drawCompact(t) {
  const facts = [t.step_time ? duration(t.step_time.seconds) + " a step" : t.phase, t.lanes ? count(t.lanes, "lane") : ""].filter((text) => text);
  return element("div", { class: "cell" },
    element("div", { class: "line" }, element("b", {}, taskName(t.task)), ...(t.state === "active" && !isOver() ? [] : [taskBadge(t)]),
      element("span", { class: "quiet" }, facts.join(" · "))),
    splitBar(t.step_time));
}

function matches(t, words) {
  const text = [taskName(t.task), t.task.address, problem(t)[1], t.state, t.phase, t.location, t.last_error, t.last_trouble].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

function drawTasks(s) {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter((word) => word), wantsAll = byId("details").checked;
  findSlowLimit(s.tasks);
  const found = s.tasks.filter((t) => matches(t, words)).sort(ORDERS[byId("order").value][1]);
  const first = { problems: found.filter((t) => problem(t)[0] > 0 && !isOver()).length, name: 0, slow: 8, silent: 8 }[byId("order").value];
  const isFull = (t, i) => wantsAll || found.length <= FULL_TASKS || i < Math.min(first, FULL_TASKS);
  byId("legend").hidden = !TRAINS(s.task);
  byId("tools").hidden = s.tasks.length <= FULL_TASKS;
  byId("tasks").replaceChildren(...found.filter(isFull).map(drawTask));
  byId("cells").replaceChildren(...found.filter((t, i) => !isFull(t, i)).map(drawCompact));
  byId("tasks-note").textContent = "where the time of a step goes" + (words.length ? "; " + found.length + " of " + s.tasks.length + " match" : "");
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
  // the advice of the group is in the status of every task, and in the events of the leader alone
  const advice = latest.advice.map((a) => ({ time_us: a.time_us, level: "advice", message: a.kind + ": " + a.text + "; " + a.remedy }));
  const warnings = advice.concat(newest.filter((r) => (r.level === "warn" || r.level === "error") && r.event !== "advice")).slice(0, 2 * ITEMS_SHOWN);
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

let latest = null, heard = null, slowAt = 0;

async function readAll() {
  const s = await read("/page.json"), isNew = !latest || latest.phase !== s.phase;
  latest = s;
  drawHead(s); drawFigures(s); drawTasks(s); drawGpus(s); drawCheckpoints(s);
  if (Date.now() - slowAt >= SLOW_MS || (isNew && isOver())) {
    const [c, e] = await Promise.all([read("/api/v1/curve"), read("/api/v1/events")]);
    curve = c;
    drawCharts();
    drawEvents(e);
    slowAt = Date.now();
  }
}

// A process that has stated how it ended does not answer any more, which is no fault.
function drawOffline(reason) {
  const offline = byId("offline"), since = heard ? " since " + heard.toLocaleTimeString("en-GB") : "";
  offline.hidden = !!latest && isOver();
  offline.textContent = "The task does not answer" + since + ": " + reason;
  if (offline.hidden) byId("updated").textContent = "The process has ended; the page shows its last status of " + heard.toLocaleTimeString("en-GB");
}

async function update() {
  if (!document.hidden) {
    try {
      await readAll();
      heard = new Date();
      byId("offline").hidden = true;
      byId("updated").textContent = "Updated " + heard.toLocaleTimeString("en-GB");
      document.body.dataset.ready = "1";
    } catch (e) {
      drawOffline(e.message);
    }
  }
  setTimeout(update, STATUS_MS);
}

for (const [part, name] of PARTS) byId("legend").append(element("li", {}, element("i", { class: part }), name));
for (const [value, [name]] of Object.entries(ORDERS)) byId("order").append(element("option", { value }, name));
for (const id of ["filter", "order", "details"]) byId(id).addEventListener("input", () => { if (latest) drawTasks(latest); });
addEventListener("resize", drawCharts);
document.addEventListener("visibilitychange", () => { slowAt = 0; });
update();
