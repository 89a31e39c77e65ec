"use strict";
// Shows a queue: asks for its figures once a second, and fills the tables. Texts are never read as HTML.

const ENDED = ["done", "failed", "cancelled", "refused"];
const SHOWN = 200;
const ORDER = ["running", "waiting", "repeats"];

function cells(row, kind, values) {
  for (const value of values) row.appendChild(document.createElement(kind)).textContent = value;
}

function fill(id, head, rows) {
  const table = document.getElementById(id);
  table.replaceChildren();
  cells(table.createTHead().insertRow(), "th", head);
  const body = table.createTBody();
  for (const row of rows.slice(0, SHOWN)) cells(body.insertRow(), "td", row);
  if (!rows.length) cells(body.insertRow(), "td", ["none"]);
  if (rows.length > SHOWN) cells(body.insertRow(), "td", [`and ${rows.length - SHOWN} more`]);
}

function time(seconds) {
  return seconds ? new Date(1000 * seconds).toLocaleString() : "";
}

function show(found) {
  document.getElementById("name").textContent = `Queue ${found.folder ?? ""}`;
  document.title = document.getElementById("name").textContent;
  const open = found.entries.filter((each) => !ENDED.includes(each.state));
  open.sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || a.priority - b.priority || a.entry - b.entry);
  const ended = found.entries.filter((each) => ENDED.includes(each.state)).reverse();
  const running = open.filter((each) => each.state === "running").length;
  document.getElementById("state").textContent =
    `${running} running, ${open.length - running} waiting, ${ended.length} ended; kept by ${found.keeper ?? "nobody"}`;
  const row = (each) => [each.entry, each.name, each.user, each.priority, each.state, each.reason, time(each.began), time(each.ended)];
  const head = ["Entry", "Name", "User", "Priority", "State", "Why", "Began", "Ended"];
  fill("now", head.slice(0, 7), open.map((each) => row(each).slice(0, 7)));
  fill("ended", head, ended.map(row));
  const where = (hosts) => Object.entries(hosts).map(([host, count]) => `${host}: ${count}`).join(", ");
  fill("users", ["User", "Slaves allowed", "Connected", "Wanted", "Hosts"],
    found.users.map((each) => [each.user, each.places, each.used, each.wants, where(each.hosts)]));
  fill("hosts", ["Machine", "User", "Serves"], found.hosts.map((each) => [each.host, each.user, each.serves || "nothing"]));
}

async function refresh() {
  try {
    const answer = await fetch("status.json");
    if (!answer.ok) throw new Error(`${answer.status}`);
    show(await answer.json());
  } catch (error) {
    document.getElementById("state").textContent = `The keeper does not answer (${error.message}).`;
  }
  setTimeout(refresh, 1000);
}

refresh();
