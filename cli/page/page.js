/* SPDX-License-Identifier: Apache-2.0 */
/* Asks /state again and again, and shows what it says. All text goes in as textContent, since names
 * of topics and programs are chosen by other users. */

const POINTS = 60; // of a sparkline: one for each look
const MORE = 100;
const NEARLY = 0.8; // a quota of which so much is used
const STALE_LOOKS = 5; // after so many intervals without a look the figures are old

const $ = (id) => document.getElementById(id);

/* ---- figures in words, as dlxctl writes them ---------------------------------------------- */

const digits = (n) => (n >= 100 || n === 0 ? n.toFixed(0) : n >= 10 ? n.toFixed(1) : n.toFixed(2));
const count = (n) => (n === null ? "?" : n.toLocaleString("en"));
const rate = (n) => (n === null ? "–" : digits(n) + "/s");

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let u = 0;
  for (; n >= 1000 && u + 1 < units.length; u++) n /= 1024;
  return (u === 0 ? n.toFixed(0) : digits(n)) + " " + units[u];
}
const byteRate = (n) => (n === null ? "–" : bytes(n) + "/s");

function time(ns) {
  if (ns === null) return "–";
  const s = ns / 1e9;
  if (s === 0) return "0 s";
  if (s < 1e-3) return digits(s * 1e6) + " µs";
  if (s < 1) return digits(s * 1e3) + " ms";
  if (s < 60) return digits(s) + " s";
  const parts = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];
  const [big, bigName, small, smallName] = parts.find((p) => s >= p[0]);
  return `${Math.floor(s / big)} ${bigName} ${Math.floor((s % big) / small)} ${smallName}`;
}

/* ---- small parts -------------------------------------------------------------------------- */

function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/* Names are isolated, so that one with marks of direction does not turn what follows. */
const name = (text) => make("bdi", { textContent: text || "-" });
const badge = (text, kind) => make("span", { className: "badge " + kind, textContent: text });

function sparkline(values) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", `0 0 ${POINTS - 1} 20`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true"); // the rate is beside it
  const most = Math.max(...values.map((v) => v ?? 0), 1e-9);
  const first = POINTS - values.length;
  let run = [];
  const draw = () => {
    if (run.length > 1) {
      const line = run.map(([x, y]) => `${x},${y}`).join(" ");
      for (const [tag, points] of [
        ["polygon", `${run[0][0]},20 ${line} ${run.at(-1)[0]},20`],
        ["polyline", line],
      ]) {
        const shape = document.createElementNS("http://www.w3.org/2000/svg", tag);
        shape.setAttribute("points", points);
        svg.append(shape);
      }
    }
    run = [];
  };
  values.forEach((v, i) => {
    if (v === null) draw();
    else run.push([first + i, (19 - (v / most) * 18).toFixed(1)]);
  });
  draw();
  return svg;
}

/* ---- tables ------------------------------------------------------------------------------- */

/* A table that is brought up to date in place, so that focus and selection stay. A column has
 * title, class, and get(row): text or elements; zero(row): nothing that matters. */
class Table {
  constructor(holder, caption, columns, key) {
    this.columns = columns;
    this.key = key;
    this.rows = new Map();
    this.heads = columns.map((c) =>
      make("th", { scope: "col", className: (c.class ?? "") + (c.sort ? " sortable" : "") }));
    columns.forEach((c, i) => {
      if (c.sort) {
        const button = make("button", { type: "button", textContent: c.title });
        button.addEventListener("click", () => sortBy(c));
        this.heads[i].append(button);
      } else this.heads[i].textContent = c.title;
    });
    this.body = make("tbody");
    const head = make("thead", {}, make("tr", {}, ...this.heads));
    this.table = make("table", {}, make("caption", { className: "sr", textContent: caption }),
      head, this.body);
    /* A table that is laid out as blocks stays one for screen readers. */
    for (const [element, role] of [[this.table, "table"], [head, "rowgroup"],
      [head.firstChild, "row"], [this.body, "rowgroup"]])
      element.setAttribute("role", role);
    this.heads.forEach((th) => th.setAttribute("role", "columnheader"));
    this.holder = make("div", { className: "table" }, this.table);
    this.empty = make("p", { className: "empty" });
    holder.append(this.holder, this.empty);
  }

  newRow() {
    const cells = this.columns.map((c) => {
      const td = make("td", { className: c.class ?? "" });
      td.setAttribute("role", "cell");
      if (c.title && !c.bare) td.dataset.label = c.title;
      return td;
    });
    const tr = make("tr", {}, ...cells);
    tr.setAttribute("role", "row");
    return { tr, cells, shown: cells.map(() => undefined) };
  }

  update(items, empty) {
    const focused = document.activeElement;
    const seen = new Set();
    let at = this.body.firstChild;
    for (const item of items) {
      const key = this.key(item);
      if (seen.has(key)) continue;
      seen.add(key);
      let row = this.rows.get(key);
      if (!row) this.rows.set(key, (row = this.newRow()));
      this.columns.forEach((c, i) => this.updateCell(c, row, i, item));
      row.tr.classList.toggle("chosen", this.isChosen?.(item) ?? false);
      if (row.tr === at) at = at.nextSibling;
      else this.body.insertBefore(row.tr, at);
    }
    for (const [key, row] of this.rows)
      if (!seen.has(key)) {
        row.tr.remove();
        this.rows.delete(key);
      }
    this.holder.hidden = seen.size === 0;
    this.empty.hidden = seen.size > 0;
    setText(this.empty, empty);
    if (focused !== document.activeElement && focused.isConnected) focused.focus();
  }

  updateCell(c, row, i, item) {
    const td = row.cells[i];
    td.classList.toggle("zero", c.zero?.(item) ?? false);
    if (c.draw) {
      td.replaceChildren(c.draw(item));
      return;
    }
    const text = c.text(item);
    if (row.shown[i] === text) return;
    row.shown[i] = text;
    td.classList.toggle("blank", text === "");
    if (c.parts) td.replaceChildren(...c.parts(item));
    else setText(td, text);
  }
}

const figure = (title, key, text, more) => ({
  title,
  class: "number",
  text: (row) => text(row[key]),
  zero: (row) => row[key] === 0 || row[key] === null,
  ...more,
});

const program = (title = "Program") => ({
  title,
  class: "name",
  bare: true,
  text: (row) => row.program ?? row.client_name,
  parts: (row) => [name(row.program ?? row.client_name)],
});
const pid = { title: "Process", class: "number", text: (row) => (row.pid ? String(row.pid) : "?") };
const user = { title: "User", text: (row) => row.user };
const topicName = (more) => ({
  title: "Topic",
  class: "name",
  bare: true,
  text: (row) => row.topic,
  parts: (row) => {
    const button = make("button", { type: "button", className: "topic" }, name(row.topic));
    button.addEventListener("click", () => choose(row.topic));
    return [button];
  },
  ...more,
});

/* ---- the state of a topic and of a link, as badges ----------------------------------------- */

const many = (n, what) => (n === 1 ? what : `${n} ${what}`);

function topicNotes(t) {
  const notes = [];
  if (t.blocked) notes.push(["BLOCKED", "bad"]);
  if (t.full > 0) notes.push([many(t.full, "FULL"), "warn"]);
  if (t.joining > 0) notes.push([many(t.joining, "JOINING"), "plain"]);
  if (t.n_retained > 0) notes.push([many(t.n_retained, "RETAINED"), "plain"]);
  return notes;
}

function linkNotes(l) {
  const notes = [];
  if (l.blocks) notes.push(["BLOCKS", "bad"]);
  if (l.max_held > 0 && l.n_held >= l.max_held) notes.push(["FULL", "warn"]);
  if (l.lost > 0) notes.push(["LOST", "warn"]);
  if (l.joining) notes.push(["JOINING", "plain"]);
  return notes;
}

const notes = (of) => ({
  title: "State",
  bare: true,
  text: (row) => of(row).map((n) => n[0]).join(", "),
  parts: (row) => of(row).map((n) => badge(...n)),
});

/* ---- what is shown -------------------------------------------------------------------------- */

const address = new URLSearchParams(location.search);
const view = {
  filter: address.get("filter") ?? "",
  sort: address.get("sort") ?? "RATE",
  reverse: address.get("reverse") === "1",
  topic: address.get("topic") ?? "",
  n: 50,
};
const rates = new Map(); // topic: those of the last looks
let lastLook = 0;
let paused = false;
const publishers = new Map(); // id: what shows it
let nearlyFull = false; // was a quota at the last look?
let nSockets = 1; // of the users whose quotas are shown

const topics = new Table($("topics"), "Topics, with the sums of their publishers", [
  topicName({ sort: "TOPIC" }),
  notes(topicNotes),
  figure("Rate", "messages_per_s", rate, { sort: "RATE", class: "number keep" }),
  { title: "Trend", class: "spark-cell", bare: true,
    draw: (t) => sparkline(rates.get(t.topic) ?? []) },
  figure("Data", "bytes_per_s", byteRate, { sort: "DATA" }),
  figure("Pubs", "n_publishers", count, { sort: "PUBS", class: "number minor" }),
  figure("Subs", "n_subscribers", count, { sort: "SUBS" }),
  figure("Behind", "behind", count, { sort: "BEHIND" }),
  figure("Held", "n_held", count, { sort: "HELD" }),
  figure("Oldest hold", "held_age_ns", time, { sort: "OLDEST" }),
  figure("Drops", "dropped_per_s", rate, { sort: "DROPS" }),
  figure("Dropped", "dropped", count, { sort: "DROPPED", class: "number minor" }),
  figure("Refused", "refused", count, { sort: "REFUSED", class: "number minor" }),
  figure("Blocked", "blocked_ns", time, { sort: "BLOCKED", class: "number minor" }),
  figure("Memory", "memory_bytes", bytes, { sort: "MEMORY", class: "number minor" }),
], (t) => t.topic);
topics.isChosen = (t) => t.topic === view.topic;

const heldOf = (l) => (l.max_held > 0 ? `${l.n_held} of ${l.max_held}` : String(l.n_held));
const holds = new Table($("holds"), "Subscribers that block, then those with the oldest holds", [
  program(), notes((h) => linkNotes({ lost: 0, ...h })), pid, user, topicName(),
  figure("Behind", "behind", count),
  figure("Next", "next_age_ns", time),
  { title: "Held", class: "number", text: heldOf, zero: (h) => h.n_held === 0 },
  figure("About", "bytes", bytes),
  figure("Oldest", "held_age_ns", time),
], (h) => h.link);

const unserved = new Table($("unserved"), "Subscriptions that no publisher serves", [
  { title: "Topic", class: "name", bare: true, text: (s) => s.topic,
    parts: (s) => [name(s.topic)] },
  program(), pid, user,
  { title: "Refused", class: "words", text: (s) => s.refusal },
], (s) => `${s.topic}\n${s.pid}\n${s.program}\n${s.refusal}`);

const refusals = new Table($("refusals"), "What dlpackd has refused, the newest first", [
  { title: "Topic", class: "name", bare: true, text: (r) => r.topic,
    parts: (r) => [name(r.topic)] },
  { title: "Ago", class: "number", text: (r) => time(r.age_ns) },
  { title: "Request", text: (r) => (r.n > 1 ? `${r.what} (${r.n} times)` : r.what) },
  program(), pid, user,
  { title: "Why", class: "words", bare: true,
    text: (r) => (r.rule ? `${r.text} (${r.rule})` : r.text) },
], (r) => `${r.what}\n${r.pid}\n${r.topic}\n${r.text}`);

const partOf = (q) => (q.max > 0 ? q.used / q.max : 1);
const percent = (q) => `${Math.round(partOf(q) * 100)} %`;
// A uid is another user on each socket.
const whose = (q) => (nSockets > 1 ? `${q.user} by ${q.socket}` : q.user);
const isSize = (q) => q.name.endsWith("bytes");
const amount = (q, n) => (isSize(q) ? bytes(n) : count(n));
const quotas = new Table($("quotas"), "What users use of dlpackd, and may have", [
  { title: "User", class: "name", bare: true, text: whose },
  { title: "Quota", text: (q) => q.name },
  { title: "Used", class: "number", text: (q) => amount(q, q.used) },
  { title: "Limit", class: "number", text: (q) => amount(q, q.max) },
  { title: "Share", bare: true, text: percent,
    parts: (q) => {
      const meter = make("meter", { max: 1, low: NEARLY, high: 0.95, optimum: 0,
        value: partOf(q) });
      meter.setAttribute("aria-hidden", "true"); // the text says it
      return [meter, " " + percent(q)];
    } },
], (q) => `${q.user}\n${q.socket}\n${q.name}`);

const LINK_COLUMNS = [
  program("Subscriber"), notes(linkNotes), pid, user,
  { title: "Takes",
    text: (l) => (l.latest ? "the latest" : "all") + (l.reliable ? ", reliable" : "") },
  figure("Rate", "taken_per_s", rate),
  figure("Taken", "taken", count, { class: "number minor" }),
  figure("Skipped", "skipped", count, { class: "number minor" }),
  figure("Lost", "lost", count),
  figure("Behind", "behind", count),
  figure("Next", "next_age_ns", time),
  { title: "Held", class: "number", text: heldOf, zero: (l) => l.n_held === 0 },
  figure("Oldest", "held_age_ns", time),
];

function newPublisher(id) {
  const element = make("div", { className: "publisher" });
  const p = {
    element,
    title: make("h3"),
    figures: make("p"),
    settings: make("p"),
  };
  element.append(p.title, p.figures, p.settings);
  p.links = new Table(element, `Subscribers of publisher ${id}`, LINK_COLUMNS, (l) => l.link);
  return p;
}

function showPublisher(p, info) {
  const who = info.retained ? "retained, its process has gone"
    : `process ${info.pid || "?"}, user ${info.user}`;
  if (p.who !== who + info.client_name)
    p.title.replaceChildren("Published by ", name(info.client_name), ` (${who})`);
  p.who = who + info.client_name;
  const figures = [`${rate(info.messages_per_s)}, ${byteRate(info.bytes_per_s)}`,
    `${count(info.published)} messages, ${bytes(info.published_bytes)}`];
  if (info.refused > 0) figures.push(`${count(info.refused)} refused for lack of room`);
  if (info.copied > 0) figures.push(`${count(info.copied)} copied`);
  // One wait may be short where the program tries again and again.
  if (info.blocked_age_ns !== null)
    figures.push(`waits for room, ${time(info.blocked_ns)} in all`);
  else if (info.blocked_ns > 0) figures.push(`waited ${time(info.blocked_ns)} for room in all`);
  setText(p.figures, figures.join(" · "));
  setText(p.settings, [`history ${info.history}, depth ${info.depth}`,
    info.on_full === "block" ? "blocks when full" : "drops the oldest when full",
    `${bytes(info.arena_bytes + info.control_bytes)} of shared memory`].join(" · "));
  p.links.update(info.links, info.n_subscribers > 0 ? "Subscribers are being looked for."
    : "No subscriber.");
}

function showDetail(state) {
  $("detail").hidden = view.topic === "";
  if (view.topic === "") return;
  if ($("detail-title").textContent !== view.topic)
    $("detail-title").replaceChildren(name(view.topic));
  const infos = state.topic?.publishers ?? [];
  const ids = new Set(infos.map((i) => i.publisher));
  for (const [id, p] of publishers)
    if (!ids.has(id)) {
      p.element.remove();
      publishers.delete(id);
    }
  for (const info of infos) {
    let p = publishers.get(info.publisher);
    if (!p) {
      publishers.set(info.publisher, (p = newPublisher(info.publisher)));
      $("publishers").append(p.element);
    }
    showPublisher(p, info);
  }
  if (infos.length === 0 && !$("publishers").querySelector(".empty"))
    $("publishers").replaceChildren(make("p", { className: "empty",
      textContent: "There is no publisher." }));
  else if (infos.length > 0) $("publishers").querySelector(":scope > .empty")?.remove();
}

/* ---- the picture of the topic that is chosen ------------------------------------------------ */

const RETRY_MS = 5000;
let pictureTimer = 0, pictureOf = "", asksForPicture = false;

function clearPicture() {
  clearTimeout(pictureTimer);
  pictureTimer = 0;
  pictureOf = "";
  URL.revokeObjectURL($("image").src);
  $("image").removeAttribute("src");
  $("image").hidden = $("picture").hidden = true;
  setText($("caption"), "");
}

async function showImage(answer, topic) {
  const image = await answer.blob();
  if (topic !== pictureOf) return; /* another one was chosen meanwhile */
  const url = URL.createObjectURL(image);
  const before = $("image").src;
  $("image").src = url;
  $("image").alt = `newest image of ${topic}`;
  $("image").hidden = false;
  if (before) URL.revokeObjectURL(before);
  setText($("caption"), answer.headers.get("X-Caption") ?? "");
}

/* Returns after how many milliseconds there may be another one. */
async function askForPicture(topic, interval_ms) {
  try {
    const answer = await fetch("picture?" + new URLSearchParams({ topic }), {
      headers: authorization(), cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (topic !== pictureOf) return 0;
    if (answer.ok) {
      await showImage(answer, topic);
      return interval_ms;
    }
    $("image").hidden = true;
    setText($("caption"), `No picture: ${(await answer.text()).trim()}`);
  } catch {
    /* The state tells that serve does not answer. */
  }
  return RETRY_MS;
}

async function updatePicture(topic, interval_ms) {
  if (asksForPicture) return;
  asksForPicture = true;
  const wait_ms = await askForPicture(topic, interval_ms);
  asksForPicture = false;
  pictureTimer = 0;
  if (wait_ms > 0 && topic === pictureOf && !paused && !document.hidden)
    pictureTimer = setTimeout(() => updatePicture(topic, interval_ms), wait_ms);
}

/* Each new state sets pictures going, if they are not: after a pause, say. */
function showPicture(state) {
  if (view.topic === "" || state.picture_ns === null) {
    if (pictureOf) clearPicture();
    return;
  }
  if (pictureOf !== view.topic) {
    clearPicture();
    pictureOf = view.topic;
    $("picture").hidden = false;
  }
  if (!pictureTimer) updatePicture(pictureOf, Math.max(state.picture_ns / 1e6, 40));
}

function showFigures(state) {
  const d = state.daemon;
  const figures = [["Topics", count(state.n_topics)], ["Publishers", count(d.n_publishers)],
    ["Links", count(d.n_links)], ["Connections", count(d.n_clients)],
    ["Shared memory", bytes(d.shared_bytes)], ["Refused", count(d.refused)],
    ["Up for", time(d.uptime_ns)]];
  if ($("figures").children.length !== figures.length)
    $("figures").replaceChildren(...figures.map(([title]) =>
      make("div", {}, make("dt", { textContent: title }), make("dd"))));
  figures.forEach(([, text], i) => setText($("figures").children[i].lastChild, text));
}

function remember(state) {
  if (state.look_ns === lastLook) return;
  const gap = lastLook > 0 && state.look_ns - lastLook > STALE_LOOKS * state.interval_ns;
  lastLook = state.look_ns;
  for (const t of state.topics) {
    const values = rates.get(t.topic) ?? [];
    if (gap) values.push(null);
    values.push(t.messages_per_s);
    while (values.length > POINTS) values.shift();
    rates.set(t.topic, values);
  }
  if (rates.size > 4 * view.n) { // topics that were shown long ago
    const shown = new Set(state.topics.map((t) => t.topic));
    for (const topic of rates.keys()) if (!shown.has(topic)) rates.delete(topic);
  }
}

/* A line for what hinders all: what dlpackd lacks, and what rules hide. */
function showNotice(state) {
  const n = state.n_hidden;
  const words = [];
  if (state.daemon.lack) words.push(`dlpackd lacks ${state.daemon.lack}.`);
  if (n > 0)
    words.push(`dlpackd's rules hide ${many(n, n === 1 ? "one publisher" : "publishers")} from ` +
      "the user of dlxctl serve: a rule with `allow = observe` shows them (dlpackd.conf(5)).");
  $("notice").hidden = words.length === 0;
  $("notice").classList.toggle("warn", words.length > 0);
  setText($("notice"), words.join(" "));
}

/* What is used, the fullest first. The list opens by itself when that is nearly used up. */
function showQuotas(all) {
  $("quotas-section").hidden = all.length === 0;
  if (all.length === 0) return;
  const nearly = partOf(all[0]) >= NEARLY;
  if (nearly && !nearlyFull) $("quotas-all").open = true;
  nearlyFull = nearly;
  nSockets = new Set(all.map((q) => q.socket)).size;
  setText($("quotas-n"), `the fullest: ${all[0].name} of ${whose(all[0])}, ${percent(all[0])}`);
  quotas.update(all.filter((q) => q.used > 0), "Nothing is used.");
}

const shownOf = (n, all) => (n < all ? `${count(n)} of ${count(all)}` : count(all));

function show(state) {
  remember(state);
  showFigures(state);
  showNotice(state);
  showDetail(state);
  showPicture(state);
  topics.heads.forEach((th, i) => {
    const c = topics.columns[i];
    if (c.sort && c.sort === view.sort)
      th.setAttribute("aria-sort",
        (c.sort === "TOPIC") === view.reverse ? "descending" : "ascending");
    else th.removeAttribute("aria-sort");
  });
  setText($("topics-n"), shownOf(state.topics.length, state.n_found));
  topics.update(state.topics, state.n_topics > 0 ? "No topic matches." : "No topic is published.");
  $("more").hidden = state.topics.length >= state.n_found || view.n >= 1000;
  setText($("holds-n"), shownOf(state.holds.length, state.n_holds));
  holds.update(state.holds, "No subscriber holds a message, and no publisher waits for one.");
  const alone = state.unserved ?? [];
  $("unserved-section").hidden = alone.length === 0;
  setText($("unserved-n"), shownOf(alone.length, Math.max(alone.length, state.n_unserved)));
  unserved.update(alone, "");
  const refused = (state.refusals ?? []).toReversed();
  $("refusals-section").hidden = refused.length === 0;
  refusals.update(refused, "");
  showQuotas(state.quotas.sort((a, b) => partOf(b) - partOf(a)));
}

/* ---- asking ---------------------------------------------------------------------------------- */

const TOKEN = "dlpackd-token";
let timer = 0, asking = false, again = false;

/* The token comes behind '#', which goes to no server, and is not left in the address. */
function takeToken() {
  const match = /^#token=(.+)$/.exec(location.hash);
  if (!match) return;
  sessionStorage.setItem(TOKEN, decodeURIComponent(match[1]));
  history.replaceState(null, "", location.pathname + location.search);
}

function tell(text, kind) {
  setText($("state"), text);
  $("state").className = "state " + kind;
  $("main").classList.toggle("stale", kind !== "live");
}

function signIn(why) {
  tell("not signed in", "");
  $("sign-in").hidden = false;
  $("main").hidden = $("pause").hidden = true;
  if (why) setText($("sign-in-why"), why);
  $("token").focus();
}

function query() {
  const q = new URLSearchParams({ n: view.n, sort: view.sort });
  if (view.filter) q.set("filter", view.filter);
  if (view.reverse) q.set("reverse", "1");
  if (view.topic) q.set("topic", view.topic);
  return q;
}

function authorization() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: "Bearer " + token } : {};
}

/* Returns after how many milliseconds to ask again; 0: not before the user acts. */
async function ask() {
  let answer, text, state;
  try {
    answer = await fetch("state?" + query(), {
      headers: authorization(), cache: "no-store", signal: AbortSignal.timeout(10000) });
    text = await answer.text();
    if (answer.ok) state = JSON.parse(text);
  } catch {
    tell("dlxctl serve does not answer; these are its last figures", "away");
    return 2000;
  }
  if (answer.status === 401) {
    signIn(sessionStorage.getItem(TOKEN) && "This token is another one.");
    return 0;
  }
  if (!answer.ok) {
    tell(text.trim(), "away");
    return 5000;
  }
  if (paused) return 0;
  $("sign-in").hidden = true;
  $("main").hidden = $("pause").hidden = false;
  show(state);
  if (state.up) tell(`dlpackd ${state.daemon.version}`, "live");
  else tell(`dlpackd is away: ${state.trouble}` +
    (state.look_ns > 0 ? `; figures are ${time(state.look_age_ns)} old` : ""), "away");
  return Math.max(state.interval_ns / 1e6, 200);
}

async function update() {
  clearTimeout(timer);
  if (paused) return;
  if (asking) {
    again = true;
    return;
  }
  asking = true;
  let wait_ms = 0;
  do {
    again = false;
    wait_ms = await ask();
  } while (again);
  asking = false;
  if (wait_ms > 0 && !document.hidden) timer = setTimeout(update, wait_ms);
}

/* ---- what one can do ------------------------------------------------------------------------- */

function changed() {
  const q = query();
  q.delete("n");
  if (view.sort === "RATE") q.delete("sort");
  const text = q.toString();
  history.replaceState(null, "", location.pathname + (text ? "?" + text : ""));
  update();
}

function sortBy(column) {
  view.reverse = view.sort === column.sort && !view.reverse;
  view.sort = column.sort;
  changed();
}

function choose(topic) {
  view.topic = topic;
  changed();
  $("detail").hidden = false;
  $("detail").scrollIntoView({ block: "nearest" });
  $("detail").focus({ preventScroll: true });
}

function closeDetail() {
  const topic = view.topic;
  view.topic = "";
  $("detail").hidden = true;
  clearPicture();
  topics.rows.get(topic)?.tr.querySelector("button")?.focus();
  changed();
}

$("filter").value = view.filter;
$("filter").addEventListener("input", () => {
  view.filter = $("filter").value.trim();
  changed();
});
$("close").addEventListener("click", closeDetail);
document.addEventListener("keydown", (e) => {
  if (e.key === "Escape" && view.topic && e.target !== $("filter")) closeDetail();
});
$("more").addEventListener("click", () => {
  view.n = Math.min(view.n + MORE, 1000);
  update();
});
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  if (paused) tell("paused", "");
  update();
});
$("sign-in").addEventListener("submit", (e) => {
  e.preventDefault();
  sessionStorage.setItem(TOKEN, $("token").value.trim());
  $("token").value = "";
  update();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) update();
});
window.addEventListener("hashchange", () => {
  takeToken();
  update();
});

takeToken();
update();
