// The page of `kestrel serve`: lists runs and shows one in the notebook's panel. Every text goes in as text.
import panel from "./panel.js";

const at = id => document.getElementById(id);
const make = (tag, cls, text) => {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  if (text !== undefined) node.textContent = text;
  return node;
};
const put = (node, text) => { if (node.textContent !== text) node.textContent = text; };

// The token comes behind the # of the address, which is not sent anywhere, and is taken out of it at once.
const KEY = "kestrel-token";
const tokenIn = text => /[#&]token=([\w-]+)/.exec(text)?.[1];
const given = tokenIn(location.hash);
if (given) {
  sessionStorage.setItem(KEY, given);
  history.replaceState(null, "", location.pathname);
}
const token = () => sessionStorage.getItem(KEY) || "";
const signed = more => ({ Authorization: "Bearer " + token(), ...more });

let serial = 0;
async function say(message) {
  const body = JSON.stringify({ id: String(++serial), ...message });
  let response;
  try {
    response = await fetch("v1/messages", { method: "POST", headers: signed({ "Content-Type": "application/json" }), body });
  } catch {
    return { type: "error", code: "refused", message: "the server cannot be reached", todo: "try again once it is connected" };
  }
  if (response.status === 401) askForToken();
  return response.json();
}
const replyText = reply => [reply.message, reply.todo].filter(Boolean).join(": ");
function complain(text) {
  put(at("trouble"), text);
  at("trouble").hidden = !text;
}

// A stream of server-sent events, read by fetch since an EventSource could not send the token. It comes back by itself
// behind the last event it has seen, until it is closed.
function stream(address, hear, state) {
  const stopping = new AbortController();
  let last = "", pause = 500, ended = false;
  async function once() {
    const response = await fetch(address, { headers: signed(last ? { "Last-Event-ID": last } : {}), signal: stopping.signal });
    if (response.status === 401) { state("locked"); askForToken(); ended = true; return; }
    if (!response.ok) {
      const reply = await response.json();
      complain(replyText(reply));
      ended = response.status === 404;
      throw new Error(reply.message);
    }
    state("connected");
    pause = 500;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let held = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (held + value).split("\n\n");
      held = blocks.pop();
      for (const block of blocks) {
        const lines = block.split("\n"), data = lines.find(line => line.startsWith("data: "));
        if (!data) continue;
        const message = JSON.parse(data.slice(6)), id = lines.find(line => line.startsWith("id: "));
        hear(message);
        if (id) last = id.slice(4);
      }
    }
  }
  (async () => {
    while (!ended && !stopping.signal.aborted) {
      try { await once(); } catch { /* the connection state shows it */ }
      if (ended || stopping.signal.aborted) return;
      state("lost");
      await new Promise(resolve => setTimeout(resolve, pause));
      pause = Math.min(pause * 2, 8000);
    }
  })();
  return { close: () => stopping.abort() };
}

// What the panel takes for its kernel: messages about the run go in, what is clicked comes out.
function connectPanel(run, el, note) {
  const listeners = new Set();
  const kinds = new Map(); // whether a call waits for leave or for words
  let number = 0, asks = {}, whole = null, clicked = null;
  const tell = message => listeners.forEach(listener => listener(message));
  const decided = async ({ id, granted, answer, reason, args, scope }) => {
    const [question, key] = asks[id] || [id, ""], common = { run, question, key };
    const reply = await say(
      kinds.get(id) === "question" ? { ...common, type: "answer", text: granted ? answer : null }
        : granted ? { ...common, type: "approve", reason: reason || "", scope: scope || "once", ...(args ? { args } : {}) }
          : { ...common, type: "deny", reason: reason || "", scope: scope || "once" });
    if (reply.type !== "error") return note(reply.note);
    tell({ k: "refused", id, message: replyText(reply) });
    if (reply.code === "already_decided") note(replyText(reply));
  };
  const stop = async () => {
    let reply = await say({ type: "cancel", run });
    if (reply.code === "at_work_elsewhere" && window.confirm("Another process works on this run. Take it away and end it? What that process is doing just now may still take effect."))
      reply = await say({ type: "cancel", run, force: true });
    if (reply.type === "error") {
      note(replyText(reply));
      const button = el.querySelector(".kst-stop");
      if (button) button.disabled = false;
    }
  };
  const model = {
    stopsRuns: true,
    get: name => name === "picture" ? {} : "",
    on: (event, listener) => { if (event === "msg:custom") listeners.add(listener); },
    off: (_, listener) => listeners.delete(listener),
    send(message) {
      if (message.k === "resync" && whole) tell(whole);
      if (message.k === "decide" && message.n !== clicked) { clicked = message.n; decided(message); } // the panel repeats a click
      if (message.k === "stop") stop();
    },
  };
  const close = panel.render({ model, el });
  const hear = message => {
    if (message.type !== "view") return;
    const before = Object.keys(asks).join();
    asks = message.asks;
    if (Object.keys(asks).join() !== before) {
      const until = Math.min(...Object.values(asks).map(([, , expires]) => expires || Infinity));
      note(until < Infinity ? "Without an answer by " + new Date(until * 1000).toLocaleTimeString() + " the answer is no." : "");
    }
    for (const change of message.changes) if (change.op === "ask") kinds.set(change.id, change.kind);
    if (message.whole) { whole = { k: "snap", seq: number, now: message.at, changes: message.changes }; tell(whole); }
    else tell({ k: "patch", seq: ++number, now: message.at, changes: message.changes });
  };
  return { hear, close };
}

const runs = new Map();
let shown = null, wanted = "";
const WORD = { WAITING_APPROVAL: "waits for you", PLANNING: "planning", EXECUTING: "running", COMPLETE: "complete", FAILED: "failed", CANCELLED: "cancelled", INTERRUPTED: "interrupted", UNKNOWN: "unknown: it belongs to another machine" };
const LIVE = new Set(["PLANNING", "EXECUTING", "WAITING_APPROVAL"]);
const seconds = s => s < 60 ? s.toFixed(0) + " s" : s < 3600 ? Math.floor(s / 60) + " min" : s < 86400 ? Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " d";
const money = run => [run.cost_usd ? "$" + run.cost_usd.toFixed(4) : "", run.unpriced ? run.unpriced + " unpriced" : ""].filter(Boolean).join(" + ");

function entry(run) {
  const root = make("li"), open = make("button", "entry"), goal = make("span", "goal"), state = make("span", "state"), rest = make("span", "soft rest");
  open.type = "button";
  open.append(goal, state, rest);
  open.onclick = () => choose(run.id, true);
  root.append(open);
  return {
    root, open,
    update(now) {
      this.run = now;
      root.dataset.status = now.status;
      put(goal, now.goal.trim().slice(0, 200) || "(no goal)");
      goal.title = now.goal.slice(0, 2000);
      const lost = LIVE.has(now.status) && !now.worked_on;
      put(state, WORD[now.visible_status] || now.visible_status);
      root.classList.toggle("lost", lost);
      this.tick(Date.now() / 1000);
      this.sift();
    },
    tick(clock) {
      const { created_at: began, ended_at: ended, worked_on: worked, took_s: took, counting_since: since } = this.run;
      const age = seconds(Math.max(0, clock - began)) + " ago";
      const lasted = ended ? "took " + seconds(took) : worked ? "for " + seconds(took + (since ? Math.max(0, clock - since) : 0)) : "";
      put(rest, [worked ? "" : age, lasted, money(this.run), this.run.model_kind === "real" ? "" : this.run.model_kind, this.run.id].filter(Boolean).join(" · "));
    },
    sift() {
      const text = (this.run.goal + " " + this.run.id + " " + state.textContent + " " + this.run.model).toLowerCase();
      root.hidden = !at("find").value.toLowerCase().split(/\s+/).every(word => text.includes(word));
    },
  };
}

function list(summary, first) {
  let known = runs.get(summary.id);
  if (!known) {
    known = entry(summary);
    runs.set(summary.id, known);
    if (first) at("runs").append(known.root); else at("runs").prepend(known.root);
  }
  known.update(summary);
  if (shown?.id === summary.id) tools();
}

function tools() {
  const run = runs.get(shown?.id)?.run;
  at("tools").hidden = !shown;
  at("resume").hidden = !(canStart && run && LIVE.has(run.status) && !run.worked_on);
  put(at("way"), !canStart && run?.visible_status === "INTERRUPTED" ? "Nobody works on it. To go on, type: kestrel run --resume " + run.id : "");
}

function choose(id, jump) {
  shown?.close();
  const el = make("div");
  at("panel").replaceChildren(el);
  put(at("note"), "");
  shown = { id, ...connectPanel(id, el, text => put(at("note"), text || "")) };
  open();
  sessionStorage.setItem("kestrel-run", id);
  at("hint").hidden = true;
  document.body.classList.add("chosen");
  for (const [name, { open }] of runs) if (name === id) open.setAttribute("aria-current", "true"); else open.removeAttribute("aria-current");
  tools();
  if (jump) at("run").focus({ preventScroll: false });
}

// Suites: eval runs, newest first; one that is opened lists its trials, and each leads to its run.
const evals = new Map();
const OUTCOME = { pass: "passed", fail: "failed", error: "broke" };
function evalEntry() {
  const root = make("li"), box = make("details"), head = make("summary"), name = make("span", "goal"), state = make("span", "state"), rest = make("span", "soft rest"), trials = make("ul");
  head.append(name, state, rest);
  box.append(head, trials);
  root.append(box);
  const known = {
    root, box,
    update(now) {
      this.run = now;
      root.dataset.status = now.broke ? "FAILED" : now.failed ? "WAITING_APPROVAL" : "COMPLETE";
      put(name, now.suite);
      put(state, [now.passed + " passed", now.failed && now.failed + " failed", now.broke && now.broke + " broke"].filter(Boolean).join(", ") + " of " + now.of);
      put(rest, [seconds(Math.max(0, Date.now() / 1000 - now.at)) + " ago", now.commit.slice(0, 10), now.eval_run === now.commit ? "" : now.eval_run].filter(Boolean).join(" · "));
    },
    fill(found) {
      const focused = document.activeElement?.dataset.trial;
      trials.replaceChildren(...found.map(trial => {
        const item = make("li"), open = make(trial.run ? "button" : "div", "entry"), what = [trial.config, "epoch " + trial.epoch, trial.model_kind === "real" ? "" : trial.model_kind];
        item.dataset.status = { pass: "COMPLETE", fail: "WAITING_APPROVAL" }[trial.outcome] || "FAILED";
        open.append(make("span", "goal", trial.scenario), make("span", "state", OUTCOME[trial.outcome] || trial.outcome), make("span", "soft rest", [...what, trial.run || "its run is not in this log"].filter(Boolean).join(" · ")));
        if (trial.reason) open.append(make("span", "soft rest", trial.reason));
        open.dataset.trial = trial.id;
        if (trial.run) { open.type = "button"; open.onclick = () => choose(trial.run, true); }
        item.append(open);
        return item;
      }));
      const missing = this.run.trials - found.length;
      if (missing > 0) trials.append(make("li", "soft rest", "and " + missing + " more: kestrel eval summary"));
      [...trials.querySelectorAll("button")].find(one => one.dataset.trial === focused)?.focus();
    },
  };
  box.ontoggle = () => { if (box.open) loadSuites(known.run); };
  return known;
}
async function loadSuites(opened) {
  const reply = await say({ type: "trials", ...(opened ? { suite: opened.suite, eval_run: opened.eval_run } : {}) });
  if (reply.type !== "trials") return complain(replyText(reply));
  const key = one => JSON.stringify([one.suite, one.eval_run]), keys = new Set(reply.eval_runs.map(key));
  for (const [name, known] of evals) if (!keys.has(name)) { known.root.remove(); evals.delete(name); }
  reply.eval_runs.forEach((one, place) => {
    let known = evals.get(key(one));
    if (!known) { known = evalEntry(); evals.set(key(one), known); }
    known.update(one);
    if (at("suites").children[place] !== known.root) at("suites").insertBefore(known.root, at("suites").children[place] || null);
  });
  at("no-suites").hidden = evals.size > 0;
  if (opened) evals.get(key(opened))?.fill(reply.trials);
}

// Search: full text over all runs. The server names the filters; a page follows the one before.
let looked = null;
function foundEntry(hit) {
  const item = make("li"), open = make("button", "entry"), text = make("span", "rest excerpt");
  item.dataset.status = /^(pass|complete)/.test(hit.ended) ? "COMPLETE" : /^fail:/.test(hit.ended) ? "WAITING_APPROVAL" : /^(fail|error)/.test(hit.ended) ? "FAILED" : "CANCELLED";
  for (const [piece, marked] of hit.parts) text.append(marked ? make("mark", "", piece) : piece);
  open.type = "button";
  open.append(make("span", "goal", hit.task), make("span", "state", hit.ended), text,
    make("span", "soft rest", [hit.where, new Date(hit.began * 1000).toLocaleString(), hit.model, hit.run].join(" · ")));
  open.onclick = () => choose(hit.run, true);
  item.append(open);
  return item;
}
function offerFilters(known) {
  if (at("filter-list").children.length) return;
  for (const [name, help] of Object.entries(known)) {
    const label = make("label", "filter"), input = make("input");
    input.name = name;
    input.title = help;
    input.maxLength = 200;
    label.append(make("span", "soft", name.replace("_", " ")), input);
    at("filter-list").append(label);
  }
}
async function search(after) {
  const filters = Object.fromEntries([...at("filter-list").querySelectorAll("input")].map(one => [one.name, one.value.trim()]).filter(([, value]) => value));
  const asked = looked = { type: "find", query: at("query").value, filters, ...(after == null ? {} : { after }) };
  put(at("found-notes"), "searching …");
  const reply = await say(asked);
  if (asked !== looked) return; // another search was begun meanwhile
  if (reply.type !== "found") return put(at("found-notes"), replyText(reply));
  offerFilters(reply.filters);
  const items = reply.runs.map(foundEntry);
  if (after == null) at("found").replaceChildren(...items); else at("found").append(...items);
  items[0]?.firstChild.focus({ preventScroll: after == null });
  put(at("found-notes"), [at("found").children.length ? "" : "no run was found", ...reply.notes].filter(Boolean).join("; "));
  at("found-more").hidden = reply.after == null;
  at("found-more").onclick = () => search(reply.after);
}
at("search").onsubmit = event => { event.preventDefault(); search(); };

function which(name) {
  for (const one of ["runs", "suites", "search"]) {
    at("of-" + one).hidden = one !== name;
    at("show-" + one).setAttribute("aria-pressed", String(one === name));
    at("show-" + one).onclick = () => which(one);
  }
  if (name === "suites") loadSuites();
  if (name === "search") { at("query").focus(); if (!looked) search().then(() => at("query").focus()); }
}
which("runs");
// Trials end one by one while a suite runs.
setInterval(() => {
  if (at("of-suites").hidden || document.hidden) return;
  const open = [...evals.values()].filter(known => known.box.open && known.run.trials < known.run.of);
  if (open.length) open.forEach(known => loadSuites(known.run)); else loadSuites();
}, 3000);

let canStart = false, version = "";
function greeted(message) {
  canStart = message.can_start;
  at("jobs").replaceChildren();
  at("new").hidden = !canStart;
  complain("");
  if (version && version !== message.server) location.reload();
  version = message.server;
  tools();
}

function job(message) {
  let box = [...at("jobs").children].find(node => node.dataset.job === message.job);
  if (!box) {
    box = make("div", "job");
    box.dataset.job = message.job;
    box.append(make("b", "", message.job), make("progress"), make("span", "soft"));
    at("jobs").append(box);
  }
  const [, meter, text] = box.children;
  if (message.done === message.total) setTimeout(() => box.remove(), 10_000);
  if (message.fraction == null) meter.removeAttribute("value"); else meter.value = message.fraction;
  put(text, [message.total == null ? "" : message.done + " of " + message.total, message.text].filter(Boolean).join(" · "));
}

const STATE = { connecting: "connecting …", connected: "connected", lost: "connection lost, trying again …", locked: "no token" };
function connection(state) {
  at("connection").dataset.state = state;
  put(at("connection"), STATE[state]);
}

// One stream for the list and for the run that is shown: a browser opens only six to a server, over all its tabs.
let feed = null;
function open() {
  feed?.close();
  const run = shown?.id;
  feed = stream("v1/events" + (run ? "?view=1&run=" + encodeURIComponent(run) : ""), message => {
    if (shown?.id !== run) return;
    if (message.type === "hello") greeted(message);
    else if (message.type === "view") shown.hear(message);
    else if (message.type === "runs") {
      const ids = new Set(message.runs.map(one => one.id));
      for (const [id, known] of runs) if (!ids.has(id)) { known.root.remove(); runs.delete(id); }
      message.runs.forEach(one => list(one, true));
      const before = sessionStorage.getItem("kestrel-run");
      if (!shown && before && runs.has(before)) choose(before);
    } else if (message.type === "run") {
      list(message.run);
      if (message.run.id === wanted) { wanted = ""; choose(message.run.id, true); }
    } else if (message.type === "progress" && message.done != null) job(message);
    else if (message.type === "error") complain(replyText(message));
    at("none").hidden = runs.size > 0;
    const waiting = [...runs.values()].filter(({ run: { visible_status } }) => visible_status === "WAITING_APPROVAL").length;
    document.title = (waiting ? "(" + waiting + ") " : "") + "kestrel";
  }, connection);
}

function askForToken() {
  connection("locked");
  at("key").hidden = false;
  at("main").hidden = true;
  feed?.close();
  at("token").focus();
}
at("key").onsubmit = event => {
  event.preventDefault();
  const typed = at("token").value.trim();
  sessionStorage.setItem(KEY, tokenIn(typed) || typed);
  at("token").value = "";
  at("key").hidden = true;
  at("main").hidden = false;
  if (shown) choose(shown.id, true); else open();
};
at("new").onclick = () => { at("start").hidden = !at("start").hidden; if (!at("start").hidden) at("goal").focus(); };
at("leave").onclick = () => { at("start").hidden = true; at("new").focus(); };
at("goal").onkeydown = event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("start").requestSubmit(); };
at("start").onsubmit = async event => {
  event.preventDefault();
  const reply = await say({ type: "start", goal: at("goal").value });
  if (reply.type === "error") return complain(replyText(reply));
  complain("");
  at("goal").value = "";
  at("start").hidden = true;
  if (runs.has(reply.run)) choose(reply.run, true); else wanted = reply.run;
};
at("resume").onclick = async () => {
  const reply = await say({ type: "resume", run: shown.id });
  put(at("note"), reply.type === "error" ? replyText(reply) : "");
};
at("back").onclick = () => { document.body.classList.remove("chosen"); runs.get(shown?.id)?.open.focus(); };
at("find").oninput = () => runs.forEach(known => known.sift());
// Up and down go through the list as through any list.
at("runs").onkeydown = event => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const entries = [...at("runs").querySelectorAll("li:not([hidden]) > button")], place = entries.indexOf(document.activeElement);
  entries[place + step]?.focus();
  event.preventDefault();
};
setInterval(() => runs.forEach(known => known.tick(Date.now() / 1000)), 1000);
connection("connecting");
if (token()) open(); else askForToken();
