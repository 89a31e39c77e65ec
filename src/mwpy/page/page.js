"use strict";
// Asks for the figures once a second, and changes what has changed. All texts become text nodes, never HTML.

const EVERY_MS = 1000;
const HISTORY_S = 600;
const SLOW = 1.5; // a host is marked if its tasks take this many times as long as elsewhere
const COLOURS = 8;
const $ = (id) => document.getElementById(id);
const history = [];
const sorting = { hosts: ["host", 1], clients: ["name", 1], slaves: ["sid", 1] };
let latest = null;

// ---- small tools ----

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function make(kind, className, text) {
  const element = document.createElement(kind);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function svg(kind, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// Make the children of a parent those of some rows: each row has a key, and keeps its element.
function keyed(parent, rows, key, create, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  rows.forEach((row, at) => {
    const name = String(key(row));
    const element = old.get(name) ?? create(row);
    element.dataset.key = name;
    old.delete(name);
    update(element, row);
    if (parent.children[at] !== element) parent.insertBefore(element, parent.children[at] ?? null);
  });
  for (const element of old.values()) element.remove();
}

const number = (value) => value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : value < 100 ? 1 : 0 });

// As `duration` in _values/phrases.py.
function duration(seconds) {
  if (!isFinite(seconds)) return "";
  if (seconds <= 0) return "0 s";
  for (const [unit, size] of [["µs", 1e-6], ["ms", 1e-3], ["s", 1]])
    if (seconds < (unit === "s" ? 119.5 : 999.5 * size)) return `${Number((seconds / size).toPrecision(3))} ${unit}`;
  const all = Math.round(seconds), minutes = Math.round(seconds / 60), hours = Math.round(seconds / 3600);
  const two = (part) => String(part).padStart(2, "0");
  if (seconds < 599.5) return `${Math.floor(all / 60)} min${all % 60 ? ` ${two(all % 60)} s` : ""}`;
  if (hours >= 240) return `${Math.round(seconds / 86400)} days`;
  if (hours >= 48) return `${Math.floor(hours / 24)} days ${hours % 24} h`;
  return minutes >= 60 ? `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min` : `${minutes} min`;
}

function bytes(size) {
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (size < 1024) return `${number(size)} ${unit}`;
    size /= 1024;
  }
  return `${number(size)} TB`;
}

const sum = (values) => values.reduce((all, value) => all + value, 0);

// ---- the parts of the page ----

function showState(status) {
  const age = status.at ? Date.now() / 1000 - status.at : 0;
  const up = status.uptime_s === undefined ? "" : `, up ${duration(status.uptime_s)}`;
  const name = status.member_id && status.member_id !== "default-member-id" ? status.member_id : "mwpy";
  set($("name"), name);
  document.title = `${name}: ${progressOf(status)}`;
  const finished = status.state === "finished";
  set($("state"), finished ? "The computation has ended. These are its last figures." : `${status.state}${up}`);
  let stuck = status.problem ? `${status.problem}. The figures are ${duration(age)} old.` : "";
  if (!stuck && !finished && (status.stuck || status.waits)) stuck = `Nothing moves: ${status.stuck || status.waits}`;
  $("stuck").hidden = !stuck;
  set($("stuck"), stuck);
}

// What a person should see first, in a sentence each.
function showFindings(status) {
  const found = [];
  for (const [host, row] of Object.entries(status.hosts)) {
    const times = slowness(status.rows, host);
    if (row.excluded) found.push(`${host} gets no more work: ${row.excluded}`);
    else if (times > SLOW) found.push(`${host} is slow: its tasks take ${number(times)} times as long as those of the same kind elsewhere.`);
    if (row.away) found.push(`${host} is away: nothing is heard from it.`);
    if (row.setting_up) found.push(`${host} is being set up.`);
  }
  const failed = status.tasks.failed, ended = failed + status.tasks.succeeded;
  const kinds = Object.keys(status.failures);
  if (failed) found.push(`${number(failed)} of ${number(ended)} tasks failed, ${kinds.length > 1 ? "most often" : "all"} with ${kinds[0]}.`);
  const lost = sum(Object.values(status.lost));
  if (lost) found.push(`${number(lost)} attempts were lost and are made again: ${Object.keys(status.lost).join(", ")}.`);
  $("findings").hidden = !found.length;
  keyed($("findings").firstElementChild, found, (text) => text.replace(/[0-9.,]+/g, ""), () => make("li"), set);
}

function progressOf(status) {
  if (!status.tasks) return status.state;
  const ended = status.tasks.succeeded + status.tasks.failed + status.tasks.cancelled;
  const all = sum(Object.values(status.tasks)) + status.unsubmitted; // null counts as 0
  if (status.unsubmitted === null) return `${number(ended)} of at least ${number(all)}`;
  return all ? `${Math.floor((100 * ended) / all)} %` : "no tasks";
}

function showTotals(status) {
  const tasks = status.tasks;
  const submitted = tasks.pending + tasks.blocked + tasks.delayed + tasks.at_slaves;
  const left = submitted + status.unsubmitted, atLeast = status.unsubmitted === null ? "at least " : "";
  const rows = [
    ["done", number(tasks.succeeded)], ["failed", number(tasks.failed)], ["at slaves", number(tasks.at_slaves)],
    ["waiting", number(tasks.pending)], ["blocked", number(tasks.blocked)], ["delayed", number(tasks.delayed)],
    ["cancelled", number(tasks.cancelled)], ["from the run database", number(status.reused)],
    ["a second", number(status.rate)], ["not submitted", number(status.unsubmitted ?? 0)],
    ["time left", left && status.rate ? atLeast + duration(Math.round(left / status.rate)) : "—"],
    ["slaves", number(status.slaves_connected)],
    ["lost attempts", number(sum(Object.values(status.lost)))],
  ].filter(([name, value]) => value !== "0" || ["done", "failed", "slaves"].includes(name));
  keyed($("totals"), rows, ([name]) => name, ([name]) => {
    const box = make("div");
    box.append(make("dt", "", name), make("dd"));
    return box;
  }, (box, [name, value]) => {
    set(box.lastChild, value);
    box.lastChild.classList.toggle("bad", name === "failed" && value !== "0");
  });
}

function showProgress(status) {
  const rows = status.maps.map((map, at) => ({
    key: `map ${at} ${map.name}`, name: `map of ${map.name}`, all: map.total,
    parts: [["done", map.done - map.failed], ["failed", map.failed]],
    text: `${number(map.done)} of ${map.total === null ? "an unknown number" : number(map.total)} ended` +
      (map.failed ? `, ${number(map.failed)} of them failed` : "") + (status.maps.length > 1 ? timeLeft(status, map) : ""),
  }));
  for (const [name, row] of Object.entries(status.algorithms)) {
    const parts = [["done", row.finished - row.failed], ["failed", row.failed], ["running", row.at_slaves],
      ["waiting", row.pending], ["held", row.blocked + row.delayed]];
    const mean = row.finished ? `; a task takes ${duration(row.seconds / row.finished)}` : "";
    const texts = [`${number(row.finished)} ended`, row.failed && `${number(row.failed)} of them failed`,
      `${number(row.at_slaves)} at slaves`, `${number(row.pending)} waiting`, row.blocked && `${number(row.blocked)} blocked`,
      row.delayed && `${number(row.delayed)} delayed`];
    // a map submits its items bit by bit, so its total is that of its algorithm
    const maps = status.maps.filter((map) => map.name === name && map.total !== null);
    const all = maps.length ? Math.max(sum(parts.map(([, count]) => count)), sum(maps.map((map) => map.total))) : null;
    rows.push({ key: `algorithm ${name}`, name, all, parts, text: texts.filter(Boolean).join(", ") + mean });
  }
  keyed($("progress"), rows, (row) => row.key, () => {
    const box = make("div", "row");
    box.append(make("span"), make("div", "bar"), make("small"));
    box.children[1].setAttribute("role", "img");
    return box;
  }, (box, row) => {
    const [name, bar, text] = box.children, all = row.all ?? sum(row.parts.map(([, count]) => count));
    set(name, row.name);
    set(text, row.text);
    bar.setAttribute("aria-label", row.text);
    keyed(bar, row.parts.filter(([, count]) => count), ([kind]) => kind, ([kind]) => make("i", kind),
      (part, [, count]) => { part.style.width = `${(100 * count) / Math.max(all, 1)}%`; });
  });
}

function timeLeft(status, map) {
  const rate = status.rate;
  return map.total !== null && rate && map.done < map.total ? `, ${duration(Math.round((map.total - map.done) / rate))} left` : "";
}

function showRate() {
  const rates = [];
  for (let at = 1; at < history.length; at++) {
    const [before, now] = [history[at - 1], history[at]];
    if (now.at > before.at) rates.push([now.at, Math.max(0, now.ended - before.ended) / (now.at - before.at)]);
  }
  const end = rates.length ? rates[rates.length - 1][0] : 0, span = rates.length ? Math.max(10, end - rates[0][0]) : 10;
  const most = Math.max(...rates.map(([, rate]) => rate), 1e-9);
  const points = rates.map(([at, rate]) => `${600 - (600 * (end - at)) / span} ${98 - (94 * rate) / most}`);
  const path = $("rate").firstChild ?? $("rate").appendChild(svg("path", {}));
  path.setAttribute("d", points.length ? `M ${points.join(" L ")}` : "");
  set($("rate-text"), rates.length ? `From 0 to ${number(most)} tasks a second, in the last ${duration(span)}.` : "");
}

function showFailures(status) {
  $("failures").hidden = !status.examples.length && !Object.keys(status.lost).length;
  const rows = status.examples.map((one) => ({
    ...one, title: `${number(one.count)} × ${one.kind}`,
    text: `such as task ${one.task}, ${one.algorithm}(${one.arguments || "..."})${one.host ? ` on ${one.host}` : ""}, ` +
      `${duration(one.age_s)} ago: ${one.text.startsWith(`${one.kind}: `) ? one.text.slice(one.kind.length + 2) : one.text}` +
      (one.common ? ` — the newest have in common: ${one.common}` : ""),
    more: (one.arguments ? `arguments: ${one.arguments}\n` : "") +
      (one.traceback || one.text) + `\n\nTo repeat it in the process of the master: mwpy.replay(${one.task})`,
  }));
  for (const [cause, count] of Object.entries(status.lost))
    rows.push({ kind: `lost ${cause}`, title: `${number(count)} lost attempts`, text: cause, more: "" });
  keyed($("failures").lastElementChild, rows, (row) => row.kind, () => {
    const box = make("details"), head = make("summary");
    head.append(make("b"), make("span"));
    box.append(head, make("pre"));
    return box;
  }, (box, row) => {
    const [title, text] = box.firstChild.children;
    set(title, `${row.title} `);
    set(text, row.text);
    set(box.lastChild, row.more);
    box.lastChild.hidden = !row.more;
  });
}

// How many times as long the tasks of a host take as those of the same algorithms elsewhere; null if nothing compares.
function slowness(rows, host) {
  let own = 0, others = 0;
  for (const row of rows) {
    if (row.host !== host || !row.tasks) continue;
    const elsewhere = rows.filter((each) => each.algorithm === row.algorithm && each.host !== host && each.tasks);
    const tasks = sum(elsewhere.map((each) => each.tasks));
    if (!tasks) continue;
    own += row.seconds;
    others += (row.tasks * sum(elsewhere.map((each) => each.seconds))) / tasks;
  }
  return others ? own / others : null;
}

function showHosts(status) {
  const rows = Object.entries(status.hosts).map(([host, row]) => {
    const own = status.rows.filter((each) => each.host === host);
    return {
      host, ...row, pace: slowness(status.rows, host), lost: sum(own.map((each) => each.lost)),
      memory: Math.max(0, ...own.map((each) => each.memory_used)),
    };
  });
  table("hosts", rows, (row) => row.host, [
    ["host", "host", (row) => row.host + (row.excluded ? " (gets no more work)" : ""), (row) => row.excluded],
    ["busy", "busy", (row) => number(row.busy)],
    ["idle", "idle", (row) => number(row.idle)],
    ["starting", "starting", (row) => number(row.starting + row.setting_up), null, "wide optional"],
    ["away", "away", (row) => number(row.away), (row) => row.away, "wide optional"],
    ["finished", "tasks", (row) => number(row.finished)],
    ["failed", "failed", (row) => number(row.failed), (row) => row.failed],
    ["pace", "pace, to others", (row) => pace(row.pace), (row) => row.pace > SLOW],
    ["lost", "lost attempts", (row) => number(row.lost), (row) => row.lost, "wide optional"],
    ["memory", "memory of a task", (row) => (row.memory ? bytes(row.memory) : ""), null, "wide optional"],
  ]);
}

function showJobs(status) {
  const jobs = status.jobs;
  $("jobs").hidden = !jobs;
  if (!jobs) return;
  const states = Object.entries(jobs.jobs ?? {}).filter(([, count]) => count).map(([state, count]) => `${number(count)} ${state}`);
  const parts = [states.length ? `${states.join(", ")}; ${number(jobs.connected_jobs)} connected` : jobs.jobs ? "no jobs" : "the batch system does not answer",
    `${number(jobs.slaves_needed)} more slaves are needed`, `${duration(jobs.age_s)} ago`];
  set($("jobs-text"), `${parts.join("; ")}.`);
  keyed($("jobs").lastElementChild, [...jobs.messages].reverse(), (text) => text, () => make("li"), set);
}

function showClients(status) {
  $("clients-part").hidden = !status.clients?.length;
  table("clients", status.clients ?? [], (row) => row.name, [
    ["name", "client", (row) => row.name],
    ["platform", "platform", (row) => row.platform, null, "text wide"],
    ["done", "runs", (row) => number(row.done)],
    ["failed", "failed", (row) => number(row.failed), (row) => row.failed > row.done],
    ["lost", "lost", (row) => number(row.lost), (row) => row.lost],
    ["has", "has tickets", (row) => row.has.join(", "), null, "text"],
    ["silent_s", "silent for", (row) => duration(row.silent_s)],
  ]);
}

function pace(times) {
  if (times === null) return "";
  if (times > 0.9 && times < 1.1) return "as others";
  return times >= 1 ? `${number(times)} times slower` : `${number(1 / times)} times faster`;
}

function showSlaves(status) {
  table("slaves", status.slaves, (row) => row.sid, [
    ["sid", "slave", (row) => row.sid],
    ["host", "host", (row) => row.host, null, "text"],
    ["job", "job", (row) => row.job, null, "text wide optional"],
    ["state", "state", (row) => row.state, (row) => row.state === "away", "text"],
    ["algorithm", "runs", (row) => (row.task ? `task ${row.task} (${row.algorithm})` : ""), null, "text"],
    ["running_s", "running for", (row) => (row.task ? duration(row.running_s) : "")],
    ["waiting", "sent in advance", (row) => number(row.waiting), null, "wide"],
    ["finished", "tasks", (row) => number(row.finished)],
    ["mean", "time of a task", (row) => (row.finished ? duration(row.busy_s / row.finished) : ""), null, "wide"],
    ["memory", "memory", (row) => (row.memory ? bytes(row.memory) : ""), null, "wide optional"],
    ["idle", "idle since start", (row) => `${Math.round(100 * idleShare(row))} %`],
  ]);
  set($("slaves-note"), status.slaves_left_out ? `${number(status.slaves_left_out)} more slaves are not shown.` : "");
}

function idleShare(row) {
  const busy = row.busy_s + (row.task ? row.running_s : 0);
  return row.up_s ? Math.max(0, 1 - busy / row.up_s) : 0;
}

// A table whose columns are [key, title, text of a row, whether it is bad, classes]. The titles sort it.
function table(id, rows, key, columns) {
  const element = $(id);
  if (!element.tHead) {
    const head = element.createTHead().insertRow();
    for (const [name, title, , , classes] of columns) {
      const cell = make("th", classes ?? ""), button = make("button", "", title);
      cell.scope = "col";
      button.type = "button";
      button.addEventListener("click", () => {
        const [by, way] = sorting[id];
        sorting[id] = [name, by === name ? -way : 1];
        show();
      });
      cell.append(button);
      cell.dataset.name = name;
      head.append(cell);
    }
    element.createTBody();
  }
  const [by, way] = sorting[id];
  for (const cell of element.tHead.rows[0].cells) {
    if (cell.dataset.name === by) cell.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
    else cell.removeAttribute("aria-sort");
  }
  const value = (row) => ({ idle: id === "slaves" ? idleShare(row) : row.idle, mean: row.busy_s / row.finished || 0 })[by] ?? row[by] ?? -1;
  const natural = (a, b) => (typeof a === "string" && typeof b === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  const sorted = [...rows].sort((a, b) => way * natural(value(a), value(b)) || natural(key(a), key(b)));
  keyed(element.tBodies[0], sorted, key, () => {
    const line = make("tr");
    for (const [, , , , classes] of columns) line.append(make("td", classes ?? ""));
    return line;
  }, (line, row) => columns.forEach(([, , text, isBad], at) => {
    set(line.cells[at], String(text(row)));
    line.cells[at].classList.toggle("bad", Boolean(isBad?.(row)));
  }));
  columns.forEach(([, , text, , classes], at) => { // an optional column that says nothing is left out
    const hidden = Boolean(classes?.includes("optional")) && rows.every((row) => ["", "0"].includes(String(text(row))));
    for (const line of element.rows) line.cells[at].hidden = hidden;
  });
}

function showTimeline() {
  const picture = $("timeline");
  if (!history.length) return;
  const lanes = new Map(), algorithms = new Map(), high = 12, names = 90;
  const end = history[history.length - 1].at, begin = Math.max(history[0].at, end - HISTORY_S), span = Math.max(10, end - begin);
  const wide = Math.max(320, picture.parentElement.clientWidth - 20), x = (at) => wide - ((end - at) * (wide - names)) / span;
  history.forEach((sample, place) => {
    const until = history[place + 1]?.at ?? sample.at + 1;
    for (const [sid, doing] of Object.entries(sample.lanes)) {
      if (!lanes.has(sid)) lanes.set(sid, []);
      const runs = lanes.get(sid), last = runs[runs.length - 1];
      if (last && last[2] === doing && last[1] >= sample.at - 0.01) last[1] = until;
      else runs.push([sample.at, until, doing]);
      if (doing && !algorithms.has(doing)) algorithms.set(doing, algorithms.size);
    }
  });
  const colour = (doing) => (doing === null ? "var(--failed)" : doing === "" ? "var(--line)"
    : `hsl(${(210 + (algorithms.get(doing) % COLOURS) * 47) % 360} 55% 50%)`);
  const rows = [...lanes].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
  picture.setAttribute("viewBox", `0 0 ${wide} ${rows.length * high + 2}`);
  picture.style.height = `${rows.length * high + 2}px`;
  picture.replaceChildren(...rows.flatMap(([sid, runs], at) => {
    const label = svg("text", { x: 0, y: at * high + 9 });
    label.textContent = sid;
    return [label, ...runs.map(([from, to, doing]) => {
      const left = Math.max(names, x(from));
      const box = svg("rect", { x: left, y: at * high + 1, width: Math.max(1, Math.min(wide, x(to)) - left), height: high - 2, fill: colour(doing) });
      const title = box.appendChild(svg("title", {}));
      title.textContent = `${sid}: ${doing === null ? "away" : doing || "waits for a task"}, ${duration(to - from)}`;
      return box;
    })];
  }));
  const kinds = [...[...algorithms.keys()].map((name) => [name, colour(name)]), ["waits for a task", colour("")], ["away", colour(null)]];
  keyed($("timeline-text"), kinds, ([name]) => name, () => {
    const box = make("span");
    box.append(make("i"), make("span"));
    return box;
  }, (box, [name, shade]) => {
    box.firstChild.style.background = shade;
    set(box.lastChild, name);
  });
}

function showLines(status) {
  const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");
  const notices = status.notices.map((one) => ({ key: one.text, when: clock(status.at - one.age_s), text: one.text }));
  const log = status.log.map((one) => ({
    key: `${one.sid} ${one.created} ${one.text}`, when: clock(one.created),
    text: `${one.sid} on ${one.host}${one.task ? `, task ${one.task}` : ""}: ${one.logger}: ${one.text}`,
  }));
  for (const [id, rows] of [["notices", notices], ["log", log]]) {
    $(id).hidden = !rows.length;
    keyed($(id).lastElementChild, rows.reverse(), (row) => row.key, () => {
      const line = make("li");
      line.append(make("small"), make("span"));
      return line;
    }, (line, row) => {
      set(line.firstChild, `${row.when} `);
      set(line.lastChild, row.text);
    });
  }
}

function show() {
  showState(latest);
  if (!latest.tasks) return;
  showFindings(latest);
  showTotals(latest);
  showProgress(latest);
  showRate();
  showFailures(latest);
  showHosts(latest);
  showJobs(latest);
  showClients(latest);
  showSlaves(latest);
  showTimeline();
  showLines(latest);
}

// ---- the loop ----

async function look() {
  try {
    const since = history.length ? history[history.length - 1].at : 0;
    const answer = await fetch(`status.json?since=${since}`);
    if (!answer.ok) throw new Error(await answer.text());
    latest = await answer.json();
    history.push(...latest.history);
    while (history.length && history[0].at < history[history.length - 1].at - HISTORY_S) history.shift();
    show();
  } catch (error) {
    $("stuck").hidden = false;
    const why = error instanceof TypeError ? "The master does not answer: it has ended, or the network is down." : error.message;
    set($("stuck"), latest ? `${why} These are its last figures.` : why);
  }
  setTimeout(look, document.hidden ? 10 * EVERY_MS : EVERY_MS);
}

function isDark() {
  return (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
}

function choose(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  set($("theme"), isDark() ? "Light" : "Dark");
}

choose(localStorage.getItem("mwpy-theme"));
$("theme").addEventListener("click", () => {
  choose(isDark() ? "light" : "dark");
  localStorage.setItem("mwpy-theme", isDark() ? "dark" : "light");
});
look();
