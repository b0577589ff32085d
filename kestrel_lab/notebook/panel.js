// The live panel: puts patches on the page and sends clicks back. It decides nothing, and every text goes in as text.

const make = (tag, cls, text) => {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  if (text !== undefined) node.textContent = text;
  return node;
};
const put = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const seconds = s => s < 60 ? s.toFixed(1) + " s" : Math.floor(s / 60) + " min " + String(Math.floor(s % 60)).padStart(2, "0") + " s";
const MARK = { ok: "✓", error: "✗", denied: "✗", failed: "✗", waiting: "?", stopped: "–", asked: "·" };

function pairs(box, args) {
  box.replaceChildren(...args.flatMap(([name, text]) => [make("dt", "", name), put2(make("dd"), text)]));
}
function put2(dd, text) {
  const pre = make("pre", "", text);
  pre.tabIndex = 0;
  dd.append(pre);
  return dd;
}

// Each part of the view knows how to show the fields that a patch brings.
function headPart(el, send) {
  const bar = make("header", "kst-bar"), goal = make("div", "kst-goal"), said = make("span", "kst-hidden");
  const pill = make("span", "kst-pill"), run = make("code"), model = make("span", "kst-soft");
  const kind = make("span", "kst-badge kst-kind"), clock = make("span", "kst-clock"), stop = make("button", "kst-stop", "Stop run");
  const progress = make("div", "kst-progress"), note = make("span"), meter = make("progress");
  const reason = make("div", "kst-reason"), usage = make("footer", "kst-usage kst-soft");
  said.setAttribute("role", "status");
  stop.type = "button";
  stop.onclick = () => { stop.disabled = true; send({ k: "stop" }); };
  bar.append(pill, run, model, kind, make("span", "kst-gap"), clock, stop);
  progress.append(note, meter);
  const now = {};
  const update = c => {
    Object.assign(now, c);
    el.setAttribute("aria-label", "kestrel run " + now.run);
    if (c.status !== undefined) {
      el.dataset.status = now.status;
      put(pill, now.status.replace("_", " ").toLowerCase() || "starting");
      put(said, "run " + pill.textContent);
    }
    put(run, now.run || ""); put(goal, now.goal || ""); put(model, now.model || ""); put(usage, now.usage || ""); put(reason, now.reason || "");
    kind.hidden = !now.model_kind || now.model_kind === "real";
    put(kind, now.model_kind || "");
    kind.title = "not answered by a real model";
    progress.hidden = !now.progress;
    put(note, now.progress || "");
    if (now.fraction == null) meter.removeAttribute("value"); else meter.value = now.fraction;
    stop.hidden = now.ended > 0;
    reason.hidden = !now.reason;
  };
  const tick = clockNow => put(clock, now.started ? seconds(Math.max(0, (now.ended || clockNow) - now.started)) : "");
  return { bar, goal, said, progress, reason, usage, update, tick };
}

function textRow() {
  const root = make("div", "kst-text"), label = make("div", "kst-label", "Answer"), body = make("div", "kst-body"), note = make("div", "kst-note kst-soft");
  root.append(label, body, note);
  return {
    root,
    update(c) {
      if (c.state !== undefined) root.dataset.state = c.state;
      if (c.role !== undefined) root.dataset.role = c.role;
      if (c.text !== undefined) put(body, c.text);
      if (c.note !== undefined) put(note, c.note);
      root.classList.toggle("kst-empty", !body.textContent);
    },
    append(text) { body.append(text); root.classList.remove("kst-empty"); },
  };
}

function callRow() {
  const root = make("details", "kst-call"), summary = make("summary"), mark = make("span", "kst-mark"), tool = make("b"), line = make("code", "kst-line");
  const danger = make("span", "kst-badge"), took = make("span", "kst-took"), preview = make("div", "kst-preview kst-soft");
  const args = make("dl"), resultLabel = make("div", "kst-label", "Result"), result = make("pre"), note = make("div", "kst-note kst-soft");
  result.tabIndex = 0;
  summary.append(mark, tool, line, danger, took, preview);
  root.append(summary, args, resultLabel, result, note);
  let since = 0;
  return {
    root,
    update(c) {
      if (c.state !== undefined) {
        if (c.state === "error" && root.dataset.state !== "error") root.open = true;
        root.dataset.state = c.state;
        put(mark, MARK[c.state] || "");
        mark.setAttribute("role", "img");
        mark.setAttribute("aria-label", c.state);
        mark.title = c.state;
      }
      if (c.tool !== undefined) put(tool, c.tool);
      if (c.summary !== undefined) { put(line, c.summary); line.title = c.summary; }
      if (c.danger !== undefined) { put(danger, c.danger); danger.dataset.danger = c.danger; danger.hidden = !c.danger; }
      if (c.args !== undefined) pairs(args, c.args);
      if (c.result !== undefined) { put(result, c.result); result.hidden = resultLabel.hidden = !c.result; }
      if (c.preview !== undefined) put(preview, c.preview);
      if (c.note !== undefined) put(note, c.note);
      if (c.since !== undefined) since = c.since;
      if (c.took !== undefined && !since) put(took, c.took);
    },
    tick(clockNow) { if (since) put(took, seconds(Math.max(0, clockNow - since))); },
  };
}

function noticeRow() {
  const root = make("div", "kst-notice");
  return { root, update(c) { root.dataset.level = c.level; put(root, c.text); } };
}

function stepPart() {
  const root = make("li"), mark = make("span", "kst-mark"), name = make("b"), goal = make("span"), needs = make("span", "kst-soft");
  root.append(mark, name, goal, needs);
  return {
    root,
    update(c) {
      root.dataset.state = c.state;
      put(mark, MARK[c.state] || "");
      mark.setAttribute("role", "img");
      mark.setAttribute("aria-label", c.state);
      put(name, c.id); put(goal, c.goal); put(needs, c.needs.length ? "after " + c.needs.join(", ") : "");
    },
  };
}

const SETTLE_MS = 250; // a second click of a double click must not decide the next question

function askPart(id, send) {
  const root = make("div", "kst-ask"), title = make("div", "kst-asktitle"), tool = make("b"), danger = make("span", "kst-badge");
  const why = make("div", "kst-why"), args = make("dl"), edit = make("textarea"), problem = make("div", "kst-problem"), row = make("div", "kst-buttons");
  const reason = make("input");
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", "Approval needed");
  title.append(make("span", "", "Approve this call?"), tool, danger);
  edit.setAttribute("aria-label", "Arguments as JSON");
  edit.spellcheck = false;
  edit.hidden = true;
  problem.setAttribute("role", "alert");
  reason.type = "text";
  reason.placeholder = "Reason for denying (optional)";
  reason.setAttribute("aria-label", "Reason for denying");
  const buttons = [];
  const enable = on => buttons.forEach(b => { b.disabled = !on; });
  const decide = answer => { enable(false); put(problem, ""); send({ k: "decide", id, t: Date.now() / 1000, ...answer }); };
  const button = (text, cls, click) => { const b = make("button", cls, text); b.type = "button"; b.disabled = true; b.onclick = click; buttons.push(b); return b; };
  const approve = button("Approve", "kst-primary", () => {
    if (edit.hidden) return decide({ granted: true });
    let value;
    try { value = JSON.parse(edit.value); } catch (error) { return put(problem, "Not valid JSON: " + error.message); }
    if (value === null || typeof value !== "object" || Array.isArray(value)) return put(problem, "The arguments must be a JSON object.");
    decide({ granted: true, args: value });
  });
  const always = button("Always for this run", "", () => decide({ granted: true, scope: "run" }));
  const editing = button("Edit", "", () => {
    edit.hidden = !edit.hidden;
    args.hidden = always.hidden = !edit.hidden;
    put(approve, edit.hidden ? "Approve" : "Approve edited");
    put(editing, edit.hidden ? "Edit" : "Discard edits");
    put(problem, "");
    edit.value = edit.dataset.original;
    if (!edit.hidden) { edit.rows = Math.min(14, edit.value.split("\n").length + 1); edit.focus(); }
  });
  const deny = button("Deny", "kst-deny", () => decide({ granted: false, reason: reason.value }));
  reason.onkeydown = event => { if (event.key === "Enter" && !deny.disabled) { event.preventDefault(); deny.click(); } };
  row.append(approve, always, editing, make("span", "kst-gap"), reason, deny);
  root.append(title, why, args, edit, problem, row);
  setTimeout(() => enable(true), SETTLE_MS);
  return {
    root,
    update(c) {
      put(tool, c.tool); put(danger, c.danger); danger.dataset.danger = c.danger; put(why, c.why);
      if (edit.dataset.original !== c.json) { edit.dataset.original = c.json; pairs(args, c.args); }
    },
    refused(message) { put(problem, message); enable(true); },
  };
}

const FEW = 8; // rows that need no filter
const NEAR = 60; // newest rows, which are always laid out; the browser skips older ones that are out of sight

// Words that a row must contain, in its text or as its state; the rest is hidden.
function filterPart(rows) {
  const bar = make("div", "kst-find"), box = make("input"), count = make("span", "kst-soft");
  let words = [], timer = 0, shown = 0;
  box.type = "search";
  box.placeholder = "Filter: words, a tool, error …";
  box.setAttribute("aria-label", "Show only rows with these words");
  count.setAttribute("role", "status");
  bar.append(box, count);
  bar.hidden = true;
  const apply = ({ root }) => {
    const was = root.hidden, text = words.length ? (root.textContent + " " + root.dataset.state).toLowerCase() : "";
    root.hidden = !words.every(word => text.includes(word));
    shown += was - root.hidden;
  };
  const tell = () => put(count, words.length ? shown + " of " + rows.size : "");
  box.oninput = () => {
    clearTimeout(timer);
    timer = setTimeout(() => { words = box.value.toLowerCase().split(/\s+/).filter(Boolean); rows.forEach(apply); tell(); }, 100);
  };
  return {
    bar,
    added: () => { shown++; },
    dropped: root => { shown -= !root.hidden; },
    changed: part => { if (words.length) apply(part); },
    settled: () => { bar.hidden = rows.size <= FEW && !words.length; tell(); },
  };
}

function view(el, send) {
  el.classList.add("kst");
  el.setAttribute("role", "region");
  // A key pressed on one of our buttons is no notebook command; JupyterLab looks at the focused element first.
  el.addEventListener("focusin", event => { event.target.dataset.lmSuppressShortcuts = "true"; });
  const head = headPart(el, send), plan = make("ol", "kst-plan"), rows = make("div", "kst-rows"), asks = make("div", "kst-asks");
  plan.setAttribute("aria-label", "Plan");
  asks.setAttribute("aria-live", "assertive");
  const parts = { step: new Map(), row: new Map(), ask: new Map() }, find = filterPart(parts.row), order = [];
  el.append(head.bar, head.goal, head.said, plan, find.bar, rows, head.progress, asks, head.reason, head.usage);
  const boxes = { step: plan, row: rows, ask: asks };
  const create = c => c.op === "step" ? stepPart() : c.op === "ask" ? askPart(c.id, send)
    : c.kind === "call" ? callRow() : c.kind === "notice" ? noticeRow() : textRow();
  const drop = (op, id) => {
    const root = parts[op].get(id)?.root;
    if (op === "row" && root) find.dropped(root);
    root?.remove();
    parts[op].delete(id);
  };

  function apply(c) {
    if (c.op === "head") return head.update(c);
    if (c.op === "asked") return drop("ask", c.id);
    if (c.op === "text") {
      const row = parts.row.get(c.id);
      row?.append(c.append);
      return row && find.changed(row);
    }
    let part = parts[c.op].get(c.id);
    if (!part) {
      part = create(c);
      parts[c.op].set(c.id, part);
      boxes[c.op].append(part.root);
      if (c.op === "row") { find.added(); order.push(part.root); order.at(-NEAR)?.classList.add("kst-far"); }
    }
    part.update(c);
    if (c.op === "row") find.changed(part);
  }
  // While the reader is at the end, the newest line stays in sight; who scrolled up is left alone.
  function batch(changes) {
    const atEnd = rows.scrollHeight - rows.scrollTop - rows.clientHeight < 40;
    changes.forEach(apply);
    plan.hidden = parts.step.size < 2;
    find.settled();
    if (atEnd) rows.scrollTop = rows.scrollHeight;
  }
  return {
    batch,
    snap(changes) {
      for (const op of Object.keys(parts)) {
        const kept = new Set(changes.filter(c => c.op === op).map(c => c.id));
        for (const id of [...parts[op].keys()]) if (!kept.has(id)) drop(op, id);
      }
      batch(changes);
    },
    refused: (id, message) => parts.ask.get(id)?.refused(message),
    tick(clockNow) { head.tick(clockNow); parts.row.forEach(part => part.tick?.(clockNow)); },
  };
}

// A page that was loaded anew is not told of changes to outputs that were there before: the panel itself puts what is
// to remain in its place, so that the notebook is saved with it. False where a front end keeps its notebook to itself.
function keep(manager, id, data) {
  try {
    const cells = manager.context.model.cells;
    for (let n = 0; n < cells.length; n++) {
      const outputs = cells.get(n).outputs;
      for (let i = 0; i < (outputs?.length ?? 0); i++)
        if (outputs.get(i).data["application/vnd.jupyter.widget-view+json"]?.model_id === id)
          outputs.set(i, { output_type: "display_data", data, metadata: {} });
    }
    return true;
  } catch { return false; }
}

export default {
  // Runs as soon as the model exists, seen or not: an answer tells the kernel that clicks will arrive. The first
  // message can be sent before the front end has its channel to a busy kernel, so it is repeated until answered.
  initialize({ model }) {
    let tries = 0, heard = false;
    const who = Math.random().toString(36).slice(2);
    model.on("msg:custom", m => {
      heard = true;
      if (m.k === "still") model.send({ k: "kept", ok: keep(model.widget_manager, m.id, m.data) });
    });
    const hello = () => { if (!heard && tries++ < 30) { model.send({ k: "hello", who }); setTimeout(hello, 300); } };
    hello();
  },
  render({ model, el }) {
    const screen = view(el, message => model.send(message));
    let seq = -1, skew = 0, tries = 0, whole = false;
    const resync = () => { if (!whole && tries++ < 30) { model.send({ k: "resync" }); setTimeout(resync, 500); } };
    const receive = m => {
      if (m.now) skew = Date.now() / 1000 - m.now;
      if (m.k === "snap") { screen.snap(m.changes); seq = m.seq; }
      else if (m.k === "refused") screen.refused(m.id, m.message);
      else if (m.k === "patch" && seq >= 0 && m.seq > seq) {
        if (m.seq === seq + 1) { seq = m.seq; screen.batch(m.changes); }
        else { seq = -1; whole = false; tries = 0; resync(); }
      }
    };
    const hear = m => { whole ||= m.k === "snap"; receive(m); };
    const look = () => { const picture = model.get("picture"); if (picture.k) receive(picture); };
    model.on("msg:custom", hear);
    model.on("change:picture", look);
    look();
    resync();
    const timer = setInterval(() => screen.tick(Date.now() / 1000 - skew), 100);
    return () => { clearInterval(timer); whole = true; model.off("msg:custom", hear); model.off("change:picture", look); };
  },
};
