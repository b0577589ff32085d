// The live panel: puts patches on the page and sends clicks back. It decides nothing, and every text goes in as text.
// The one exception is Markdown (`html`, `settled`, `tail`), which the kernel renders and sanitises: see views/html/markdown.py.

const make = (tag, cls, text) => {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  if (text !== undefined) node.textContent = text;
  return node;
};
const put = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const seconds = s => s < 60 ? s.toFixed(1) + " s" : Math.floor(s / 60) + " min " + String(Math.floor(s % 60)).padStart(2, "0") + " s";
const MARK = {
  ok: "✓", done: "✓", undone: "↶", error: "✗", denied: "✗", failed: "✗", waiting: "?", stopped: "–", asked: "·", pending: "·", skipped: "»", retrying: "↻",
};
const draw = (tag, attributes, text) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};

const block = text => { const pre = make("pre", "", text); pre.tabIndex = 0; return pre; };
function pairs(box, args, codes = {}) {
  box.replaceChildren(...args.flatMap(([name, text]) => {
    const value = make("dd", codes[name] ? "kst-md" : "");
    value.append(codes[name] ? rendered(codes[name]) : block(text));
    return [make("dt", "", name), value];
  }));
}

// A unified diff, a line each: what it is stands in its class and, for who does not see colours, in its first character.
const KIND = { "+": "kst-added", "-": "kst-removed", "@": "kst-soft" };
function showDiff(pre, diff) {
  pre.hidden = !diff;
  pre.replaceChildren(...diff.split("\n").map((line, n) => make("span", n < 2 && /^(---|\+\+\+)/.test(line) ? "kst-soft" : KIND[line[0]] || "", line + "\n")));
}

// Each part of the view knows how to show the fields that a patch brings.
function headPart(el, stopping) {
  const bar = make("header", "kst-bar"), goal = make("div", "kst-goal"), said = make("span", "kst-hidden");
  const pill = make("span", "kst-pill"), run = make("code"), model = make("span", "kst-soft");
  const kind = make("span", "kst-badge kst-kind"), clock = make("span", "kst-clock"), stop = make("button", "kst-stop", "Stop run");
  const progress = make("div", "kst-progress"), note = make("span"), meter = make("progress");
  const reason = make("div", "kst-reason"), foot = make("footer", "kst-usage kst-soft"), usage = make("span"), budget = make("span", "kst-budget");
  const worked = make("span");
  const health = make("div", "kst-notice");
  health.dataset.level = "warning";
  said.setAttribute("role", "status");
  const stopHint = make("span", "kst-soft", stopping ? "" : "To stop it: the notebook's own Stop (Interrupt) button");
  stop.type = "button";
  stop.onclick = async () => {
    stop.disabled = true;
    put(stop, "Stopping \u2026");
    const problem = await stopping();
    put(stopHint, problem);
    if (problem) { stop.disabled = false; put(stop, "Stop run"); }
  };
  foot.append(usage, budget, worked);
  const gauge = (node, text, fraction) => {
    put(node, text);
    node.className = "kst-gauge";
    node.dataset.near = fraction >= 0.8;
    node.style.setProperty("--used", Math.min(100, fraction * 100).toFixed(1) + "%");
    return node;
  };
  bar.append(pill, run, model, kind, make("span", "kst-gap"), clock, stopHint, stop);
  progress.append(note, meter);
  const now = {};
  const tellGoal = () => {
    goal.replaceChildren(now.goal || "");
    if (!now.given) return;
    const more = make("details", "kst-given");
    more.append(make("summary", "kst-soft", "with the variables filled in"), make("div", "", now.given));
    goal.append(more);
  };
  const update = c => {
    Object.assign(now, c);
    el.setAttribute("aria-label", "kestrel run " + now.run);
    if (c.status !== undefined) {
      el.dataset.status = now.status;
      put(pill, now.status.replace("_", " ").toLowerCase() || "starting");
      put(said, "run " + pill.textContent);
    }
    put(run, now.run || ""); if (c.goal !== undefined || c.given !== undefined) tellGoal();  put(model, now.model || ""); put(usage, now.usage || ""); put(reason, now.reason || "");
    health.hidden = !now.health;
    put(health, now.health ? "not in order: " + now.health : "");
    kind.hidden = !now.model_kind || now.model_kind === "real";
    put(kind, now.model_kind || "");
    kind.title = "not answered by a real model";
    progress.hidden = !now.progress;
    put(note, now.progress || "");
    if (now.fraction == null) meter.removeAttribute("value"); else meter.value = now.fraction;
    if (c.budget !== undefined) budget.replaceChildren(...c.budget.map(([text, fraction]) => gauge(make("span"), text, fraction)));
    foot.hidden = !now.usage;
    worked.hidden = !now.seconds;
    stop.hidden = now.ended > 0 || !stopping;
    stopHint.hidden = now.ended > 0;
    reason.hidden = !now.reason;
  };
  let clockSeen = 0;
  const tick = clockNow => {
    clockSeen = clockNow;
    const uncounted = now.working && !now.ended ? Math.max(0, clockNow - now.working) : 0;
    put(clock, now.usage ? seconds(now.took + uncounted) : "");
    if (!now.seconds) return;
    const used = now.worked + uncounted;
    gauge(worked, Math.floor(used) + " of " + now.seconds + " s", used / now.seconds);
  };
  const lost = resume => {
    if (now.ended > 0 || el.dataset.lost) return;
    el.dataset.lost = "true";
    const row = make("div", "kst-buttons"), button = make("button", "kst-primary", "Resume in a new cell"), hint = make("span", "kst-soft");
    button.type = "button";
    button.onclick = () => { if (resume(now.run) === false) put(hint, "Type it into a cell: %kestrel resume " + now.run); else button.disabled = true; };
    row.append(button, hint);
    health.hidden = false;
    health.replaceChildren("The kernel has stopped, so nobody works on this run. Everything it did is in the log, and it can go on from there.", row);
    now.ended = clockSeen;
    put(pill, "interrupted");
    put(said, "run interrupted: the kernel has stopped");
    stop.hidden = stopHint.hidden = true;
    progress.hidden = true;
  };
  return { bar, goal, health, said, progress, reason, foot, update, tick, lost, run: () => now.run };
}

// Markdown that Python has rendered and sanitised is the only HTML there is. A page that demands Trusted Types, as that of
// `kestrel serve` does, lets this policy alone make HTML of text.
const sanitised = globalThis.trustedTypes?.createPolicy("kestrel-sanitised", { createHTML: html => html });
const rendered = html => document.createRange().createContextualFragment(sanitised?.createHTML(html) ?? html);
// Buttons on code: copy it, and where the front end has a notebook put it into a new cell.
function dress(box, tools) {
  for (const pre of box.querySelectorAll("pre[data-language]:not(.kst-dressed)")) {
    const bar = make("div", "kst-codebar"), code = pre.textContent.replace(/\n$/, "");
    const add = (text, click) => {
      const button = make("button", "", text);
      button.type = "button";
      button.onclick = async () => { put(button, (await click()) === false ? "Not possible here" : "Done"); setTimeout(() => put(button, text), 1500); };
      bar.append(button);
    };
    pre.classList.add("kst-dressed");
    pre.tabIndex = 0;
    add("Copy", () => navigator.clipboard ? navigator.clipboard.writeText(code).catch(() => false) : false);
    if (tools?.insert && /^(python3?|py|ipython|)$/.test(pre.dataset.language || "")) add("Insert as cell", () => tools.insert(code));
    pre.before(bar);
  }
}

// The element of a row, which numbers of an answer lead to; as in views/html/markdown.py.
const address = (run, row) => ("kst-" + run + "-" + row).replace(/[^A-Za-z0-9_.-]/g, "_");
// A front end may take a change of the address for its own, so a link to a row of the same page is followed here. Escape closes what is shown beside a claim.
function followed(el) {
  el.addEventListener("click", event => {
    const id = event.target.closest?.(".kst-number-from")?.getAttribute("href")?.slice(1);
    const row = id && [...el.querySelectorAll("details[id]")].find(one => one.id === id);
    if (!row) return;
    event.preventDefault();
    for (let box = row; box && box !== el; box = box.parentElement) if (box.tagName === "DETAILS") box.open = true;
    row.scrollIntoView({ block: "nearest" });
    row.querySelector("summary").focus({ preventScroll: true });
  });
  el.addEventListener("keydown", event => { if (event.key === "Escape" && event.target.classList.contains("kst-claim")) event.target.blur(); });
}

function textRow(tools) {
  const root = make("div", "kst-text"), label = make("div", "kst-label", "Answer"), body = make("div", "kst-body"), note = make("div", "kst-note kst-soft");
  const done = make("div", "kst-md"), tail = make("div", "kst-md kst-tail");
  body.append(done, tail);
  const step = make("span", "kst-step kst-soft");
  const cites = make("div", "kst-cites"), thinking = make("details", "kst-thinking"), thought = make("pre", "kst-soft");
  thinking.append(make("summary", "kst-soft", "Thinking"), thought);
  thinking.hidden = true;
  const grow = c => {
    if (c.thought !== undefined) {
      const atEnd = thought.scrollHeight - thought.scrollTop - thought.clientHeight < 40;
      thought.append(c.thought);
      thinking.hidden = false;
      if (atEnd) thought.scrollTop = thought.scrollHeight;
      return;
    }
    if (c.settled) done.append(rendered(c.settled));
    tail.replaceChildren(rendered(c.tail));
    root.classList.toggle("kst-empty", !body.textContent);
  };
  root.append(label, step, thinking, body, cites, note);
  return {
    root, step,
    update(c) {
      if (c.state !== undefined) root.dataset.state = c.state;
      if (c.role !== undefined) root.dataset.role = c.role;
      if (c.html !== undefined) { done.replaceChildren(rendered(c.html)); tail.replaceChildren(); }
      if (c.settled !== undefined) grow(c);
      else if (c.html) dress(done, tools);
      if (c.thinking !== undefined) {
        put(thought, c.thinking);
        thinking.hidden = !c.thinking;
      }
      if (c.note !== undefined) put(note, c.note);
      if (c.cites !== undefined) cites.replaceChildren(...c.cites.map(([name, text, since]) => {
        const cite = make("details"), title = make("summary");
        title.append(make("code", "", name), ...(since ? [" ", make("span", "kst-badge", since)] : []));
        cite.append(title, block(text));
        return cite;
      }));
      root.classList.toggle("kst-empty", !body.textContent && !thought.textContent);
    },
    grow,
  };
}

// A button on a call that changed something: it undoes this call and all after it.
function undoButton(call, send) {
  const button = make("button", "kst-undo", "Undo");
  button.type = "button";
  button.title = "Undo what this call and those after it changed";
  button.dataset.call = call;
  button.onclick = event => {
    event.preventDefault();
    if (button.nextSibling?.className === "kst-problem") button.nextSibling.remove();
    button.disabled = true;
    send({ k: "undo", call });
  };
  return button;
}
function notUndone({ call, message }) {
  for (const button of document.querySelectorAll("button.kst-undo:disabled")) if (button.dataset.call === call) {
    button.disabled = false;
    button.after(make("span", "kst-problem", message));
  }
}

// Headings and rows of texts.
function fillTable(table, rows) {
  table.replaceChildren(...rows.map((cells, n) => {
    const line = make("tr");
    line.append(...cells.map(cell => make(n ? "td" : "th", "", cell)));
    return line;
  }));
  table.hidden = !rows.length;
}

function callRow(tools) {
  const root = make("details", "kst-call"), summary = make("summary"), mark = make("span", "kst-mark"), tool = make("b"), line = make("code", "kst-line");
  const danger = make("span", "kst-badge"), took = make("span", "kst-took"), preview = make("div", "kst-preview kst-soft");
  const args = make("dl"), resultLabel = make("div", "kst-label", "Output"), result = block(""), diff = block(""), note = make("div", "kst-note kst-soft");
  const code = make("div", "kst-md kst-code"), figures = make("div", "kst-figures");
  const inside = make("span", "kst-soft"), step = make("span", "kst-step kst-soft"), blamed = make("span", "kst-badge kst-blamed");
  blamed.hidden = true;
  diff.classList.add("kst-diff");
  diff.hidden = true;
  summary.append(mark, inside, tool, line, blamed, danger, step, took, preview);
  const table = make("table", "kst-table"), asText = make("details", "kst-all");
  asText.append(make("summary", "", "as text"));
  table.hidden = asText.hidden = true;
  root.append(summary, code, args, resultLabel, table, result, asText, figures, diff, note);
  let since = 0, opened = false;
  return {
    root, step,
    runsCode: () => since > 0 && code.childElementCount > 0,
    update(c) {
      if (c.since !== undefined) since = c.since;
      if (c.inside !== undefined) { put(inside, c.inside ? c.inside + " ›" : ""); inside.hidden = !c.inside; root.classList.toggle("kst-inside", !!c.inside); }
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
      if (c.code_html !== undefined) { code.replaceChildren(rendered(c.code_html)); dress(code, tools); }
      if (c.figures !== undefined) figures.replaceChildren(...c.figures.map(picture));
      if (c.table !== undefined) {
        fillTable(table, c.table);
        asText.hidden = !c.table.length;
        if (c.table.length) asText.append(result); else table.after(result);
      }
      if (c.result !== undefined) {
        const atEnd = result.scrollHeight - result.scrollTop - result.clientHeight < 40;
        put(result, c.result);
        result.hidden = resultLabel.hidden = !c.result;
        if (atEnd) result.scrollTop = result.scrollHeight;
        // What runs and writes is worth watching; who folds it away is left alone.
        if (c.result && since && !opened) opened = root.open = true;
      }
      if (c.diff !== undefined) showDiff(diff, c.diff);
      if (c.preview !== undefined) put(preview, c.preview);
      if (c.note !== undefined) {
        put(note, c.note);
        const named = c.note.startsWith("▶");
        put(blamed, named ? c.note.split(" · ")[0] : "");
        blamed.hidden = !named;
      }
      if (c.undo !== undefined) {
        summary.querySelectorAll(".kst-undo, .kst-problem").forEach(node => node.remove());
        if (c.undo && tools?.undo) summary.append(undoButton(c.undo, tools.undo));
      }
      if (c.took !== undefined && !since) put(took, c.took);
    },
    tick(clockNow) { if (since) put(took, seconds(Math.max(0, clockNow - since))); },
  };
}

function noticeRow() {
  const root = make("div", "kst-notice"), step = make("span", "kst-step kst-soft"), text = make("span"), items = make("ul"), table = make("table", "kst-table");
  table.hidden = true;
  root.append(step, text, items, table);
  return {
    root, step,
    update(c) {
      if (c.level !== undefined) root.dataset.level = c.level;
      if (c.text !== undefined) put(text, c.text);
      if (c.items !== undefined) items.replaceChildren(...c.items.map(item => make("li", "", item)));
      items.hidden = !items.childElementCount;
      if (c.table !== undefined) fillTable(table, c.table);
    },
  };
}

function stageRow() {
  const root = make("h4", "kst-stage"), name = make("span"), pill = make("span", "kst-badge"), now = {};
  root.append(name, pill);
  return {
    root,
    update(c) {
      Object.assign(now, c);
      root.dataset.state = now.state;
      put(name, "Stage " + now.stage + (now.attempt > 1 ? " · attempt " + now.attempt : ""));
      put(pill, (MARK[now.state] ? MARK[now.state] + " " : "") + now.state);
    },
  };
}

// A step is shown twice: as a node of the drawing, which leads to its rows, and as an item of the list, for narrow places and for listening.
const TALL = 38;
function stepPart(drawing, goTo) {
  const root = make("li"), mark = make("span", "kst-mark"), name = make("b"), goal = make("span"), needs = make("span", "kst-soft"), now = {};
  const node = draw("g", { class: "kst-node", tabindex: "0", role: "button" }), tip = draw("title", {});
  const frame = draw("rect", { height: TALL, rx: 7 }), behind = draw("path", { class: "kst-behind" });
  const label = draw("text", { y: 16, class: "kst-nodename" }), state = draw("text", { y: 31, class: "kst-nodestate" });
  root.append(mark, name, goal, needs);
  node.append(tip, behind, frame, label, state);
  drawing.append(node);
  node.addEventListener("click", () => goTo(now.id));
  node.addEventListener("keydown", event => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); goTo(now.id); }
  });
  return {
    root, now,
    update(c) {
      Object.assign(now, c);
      const word = now.state || "pending";
      root.dataset.state = node.dataset.state = word;
      put(mark, MARK[word] || "");
      mark.setAttribute("role", "img");
      mark.setAttribute("aria-label", word);
      root.classList.toggle("kst-grown", !!now.parent);
      put(name, now.name || ""); put(goal, now.goal || "");
      put(needs, now.needs?.length ? "after " + now.needs.join(", ") : "");
      node.classList.toggle("kst-away", !!now.within);
      if (now.within) node.setAttribute("tabindex", "-1"); else node.setAttribute("tabindex", "0");
      node.style.transform = "translate(" + (now.x || 0) + "px, " + (now.y || 0) + "px)";
      frame.setAttribute("width", now.width || 0);
      behind.setAttribute("d", "M8 " + (TALL + 4) + "H" + ((now.width || 0) - 4) + "a8 8 0 0 0 8 -8V8");
      behind.classList.toggle("kst-away", !now.folded);
      frame.classList.toggle("kst-exclusive", !!now.exclusive);
      for (const text of [label, state]) text.setAttribute("x", (now.width || 0) / 2);
      put(label, now.label || ""); put(state, (MARK[word] || "…") + " " + word);
      node.setAttribute("aria-label", "step " + now.name + ", " + word + ", show what it did");
      put(tip, [now.name + " (" + word + ")", now.goal, now.reason].filter(Boolean).join("\n"));
    },
    remove() { node.remove(); },
  };
}

// The rest of the drawing: stages behind, lines from step to step, and the sheet itself.
function graphPart() {
  const root = make("div", "kst-graph"), svg = draw("svg", { role: "group" });
  const bands = draw("g", {}), lines = draw("g", {}), nodes = draw("g", {}), now = {};
  svg.append(bands, lines, nodes);
  root.append(svg);
  const band = ([title, x, width]) => {
    const group = draw("g", {}), name = draw("text", { x: x + 8, y: 17, class: "kst-band" }, title);
    group.append(draw("rect", { x, y: 2, width, height: Math.max(0, now.height - 4), rx: 6, class: "kst-bandback" }), name);
    return group;
  };
  // A step that begins comes into sight, unless somebody looks around in the drawing.
  const show = ({ x, y, width }) => {
    if (root.matches(":hover, :focus-within")) return;
    const { scrollLeft: left, scrollTop: top, clientWidth: wide, clientHeight: high } = root;
    if (x < left || x + width > left + wide) root.scrollLeft = x - wide / 2;
    if (y < top || y + TALL > top + high) root.scrollTop = y - high / 2;
  };
  return {
    root, nodes, show,
    update(c) {
      Object.assign(now, c);
      svg.setAttribute("width", now.width || 0); svg.setAttribute("height", now.height || 0);
      svg.setAttribute("aria-label", now.summary || "Plan");
      if (c.bands !== undefined || c.height !== undefined) bands.replaceChildren(...(now.bands || []).map(band));
      if (c.lines !== undefined) lines.replaceChildren(...c.lines.flatMap(([from, to, d]) => {
        const [x, y] = d.match(/-?\d+/g).slice(-2);
        return [draw("path", { d, class: "kst-edge" }), draw("path", { d: "M" + x + " " + y + "l-7 -3.5v7z", class: "kst-tip" })];
      }));
    },
  };
}

const SLOW = 5; // seconds after which a preview says how to go on without it
const SETTLE_MS = 250; // a second click of a double click must not decide the next question

// What every card has whose answer a person sends: buttons that wait a moment, and a place for what was wrong.
function card(cls, label, id, send) {
  const root = make("div", cls), problem = make("div", "kst-problem"), row = make("div", "kst-buttons"), buttons = [];
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", label);
  problem.setAttribute("role", "alert");
  const enable = on => buttons.forEach(b => { b.disabled = !on; });
  const settle = () => { enable(false); setTimeout(() => enable(true), SETTLE_MS); };
  const button = (text, cls, click) => {
    const b = make("button", cls, text);
    b.type = "button";
    b.onclick = click;
    buttons.push(b);
    return b;
  };
  let open = null;
  // Repeated like the greeting, until the card is gone: a click that is quicker than the front end's channel to a busy
  // kernel would lie there until the kernel is idle, which it never is while it waits for this very click. `n` names the
  // click, so that it counts once.
  const repeat = (message, tries) => {
    if (open !== message || !tries || (tries < 30 && !root.isConnected)) return;
    send(message);
    setTimeout(() => repeat(message, tries - 1), 300);
  };
  const decide = answer => {
    enable(false);
    put(problem, "");
    open = { k: "decide", id, t: Date.now() / 1000, n: Math.random().toString(36).slice(2), ...answer };
    repeat(open, 30);
  };
  return { root, problem, row, button, decide, settle, refused(message) { open = null; put(problem, message); enable(true); } };
}
const line = (label, press) => {
  const input = make("input");
  input.type = "text";
  input.placeholder = label;
  input.setAttribute("aria-label", label.replace(/ \(.*/, ""));
  input.onkeydown = event => { if (event.key === "Enter") { event.preventDefault(); press(); } };
  return input;
};

// An image of a preview; anything but the two kinds of images that a preview may hold is left out.
function picture(address) {
  const image = make("img");
  if (/^data:image\/(png|jpeg);base64,[A-Za-z0-9+\/]+=*$/.test(address)) image.src = address;
  image.alt = "Figure of the code";
  return image;
}

function approvalCard(id, send) {
  const { root, problem, row, button, decide, settle, refused } = card("kst-ask", "Approval needed", id, send);
  const title = make("div", "kst-asktitle"), tool = make("b"), danger = make("span", "kst-badge"), why = make("div", "kst-why");
  const diff = block(""), all = make("details", "kst-all"), args = make("dl"), edit = make("textarea");
  all.append(make("summary", "kst-soft", "Arguments"), args);
  const figures = make("div", "kst-figures"), whence = make("details", "kst-all"), origins = make("dl");
  whence.append(make("summary", "kst-soft", "Where they come from"), origins);
  const progress = make("div", "kst-previewing"), begun = { at: 0 };
  progress.setAttribute("role", "status");
  progress.hidden = true;
  title.append(make("span", "", "Approve this call?"), tool, danger);
  diff.classList.add("kst-diff");
  edit.setAttribute("aria-label", "Arguments as JSON");
  edit.spellcheck = false;
  edit.hidden = true;
  const yes = () => {
    if (edit.hidden) return decide({ granted: true });
    let value;
    try { value = JSON.parse(edit.value); } catch (error) { return put(problem, "Not valid JSON: " + error.message); }
    if (value === null || typeof value !== "object" || Array.isArray(value)) return put(problem, "The arguments must be a JSON object.");
    decide({ granted: true, args: value });
  };
  const no = why => decide({ granted: false, reason: reason.value || why || "" });
  const none = button("None from here on", "kst-deny", () => decide({ granted: false, scope: "run", reason: reason.value || "none from here on" }));
  const approve = button("Approve", "kst-primary", yes), deny = button("Deny", "kst-deny", () => no());
  const always = button("Always for this run", "", () => decide({ granted: true, scope: "run" }));
  const like = button("", "", () => decide({ granted: true, scope: like.dataset.offer ? "like" : "same" }));
  const editing = button("Edit", "", () => {
    edit.hidden = !edit.hidden;
    all.hidden = always.hidden = like.hidden = !edit.hidden;
    whence.hidden = !edit.hidden || !origins.children.length;
    diff.hidden = !edit.hidden || !diff.textContent.trim();
    put(approve, edit.hidden ? "Approve" : "Approve edited");
    put(editing, edit.hidden ? "Edit" : "Discard edits");
    put(problem, "");
    edit.value = edit.dataset.original;
    if (!edit.hidden) { edit.rows = Math.min(14, edit.value.split("\n").length + 1); edit.focus(); }
  });
  const reason = line("Reason for denying (optional)", () => { if (!deny.disabled) deny.click(); });
  row.append(approve, like, always, editing, make("span", "kst-gap"), reason, none, deny);
  none.hidden = true;
  root.append(title, why, progress, diff, figures, all, whence, edit, problem, row);
  settle();
  return {
    root, yes, no, refused, waits: () => !approve.disabled,
    tick(clockNow) {
      if (!begun.at) return;
      const spent = Math.max(0, clockNow - begun.at);
      put(progress, "Preview: running in a copy of your kernel, " + Math.floor(spent) + " s" + (spent < SLOW ? "." :
        ". You need not wait: Approve runs the code now, without a preview, and Stop ends it at any time; Deny ends the preview. It is broken off after 20 s."));
    },
    update(c) {
      if (c.previewing !== undefined) {
        begun.at = c.previewing;
        progress.hidden = !c.previewing;
        if (c.previewing) put(progress, "Preview: running in a copy of your kernel.");
        // A preview that fills in does not touch what somebody edits.
        if (c.args === undefined) { put(danger, c.danger); danger.dataset.danger = c.danger; put(why, c.why); showDiff(diff, c.diff); diff.hidden ||= !edit.hidden; figures.replaceChildren(...(c.images || []).map(picture)); return; }
      }
      like.dataset.offer = c.offer || "";
      none.hidden = !c.contained;
      put(always, c.contained ? "All like these" : "Always for this run");
      put(like, c.offer ? `Always \u201c${c.offer}\u201d` : "Always exactly this");
      put(tool, c.tool); put(danger, c.danger); danger.dataset.danger = c.danger; put(why, c.why);
      if (edit.dataset.original !== c.json) { edit.dataset.original = c.json; pairs(args, c.args, c.codes); showDiff(diff, c.previewing ? "" : c.diff); figures.replaceChildren(...(c.images || []).map(picture)); all.open = !c.folded; pairs(origins, c.origins); whence.open = !c.folded; whence.hidden = !c.origins.length; }
    },
  };
}

function questionCard(id, send) {
  const { root, problem, row, button, decide, settle, refused } = card("kst-ask kst-question", "The agent asks", id, send);
  const text = make("div", "kst-questiontext"), options = make("div", "kst-options"), drawn = [];
  const say = () => input.value.trim() ? decide({ granted: true, answer: input.value }) : put(problem, "Type an answer first.");
  const answer = button("Answer", "kst-primary", say), none = button("No answer", "", () => decide({ granted: false, reason: input.value }));
  const input = line("Your answer", () => { if (!answer.disabled) say(); });
  row.append(input, answer, none);
  root.append(make("div", "kst-label", "The agent asks"), text, options, problem, row);
  return {
    root, refused,
    update(c) {
      put(text, c.text);
      if (drawn.join("\0") !== c.options.join("\0")) {
        drawn.splice(0, drawn.length, ...c.options);
        options.replaceChildren(...c.options.map(option => button(option, "", () => decide({ granted: true, answer: option }))));
      }
      settle();
    },
  };
}

// Calls that wait together can be decided together; each decision is sent for its own call, and any can be made alone.
function togetherPart(asks) {
  const { root, row, button, settle } = card("kst-together", "Approvals needed", "", () => {});
  const title = make("div", "kst-asktitle"), calls = () => [...asks.values()].filter(ask => ask.yes);
  title.setAttribute("role", "status");
  const all = act => () => { const reason = why.value; calls().filter(ask => ask.waits()).forEach(ask => act(ask, reason)); };
  const approve = button("Approve all", "kst-primary", all(ask => ask.yes())), deny = button("Deny all", "kst-deny", all((ask, reason) => ask.no(reason)));
  const why = line("Reason for all (optional)", () => { if (!deny.disabled) deny.click(); });
  row.append(approve, make("span", "kst-gap"), why, deny);
  root.append(title, row);
  root.hidden = true;
  let before = 0;
  return {
    root,
    counted() {
      const number = calls().length;
      if (number === before) return;
      if (number > before) settle();
      before = number;
      root.hidden = number < 2;
      put(title, number + " calls wait for approval");
    },
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

function view(el, send, tools, stopping) {
  el.classList.add("kst");
  el.setAttribute("role", "region");
  // A key pressed on one of our buttons is no notebook command; JupyterLab looks at the focused element first.
  el.addEventListener("focusin", event => { event.target.dataset.lmSuppressShortcuts = "true"; });
  followed(el);
  const head = headPart(el, stopping), plan = make("section", "kst-planbox"), list = make("ol", "kst-plan"), graph = graphPart();
  const rows = make("div", "kst-rows"), asks = make("div", "kst-asks");
  plan.setAttribute("aria-label", "Plan");
  plan.append(graph.root, list);
  asks.setAttribute("aria-live", "assertive");
  const parts = { step: new Map(), row: new Map(), ask: new Map() }, find = filterPart(parts.row), together = togetherPart(parts.ask), order = [];
  asks.append(together.root);
  el.append(head.bar, head.goal, head.health, head.said, plan, find.bar, rows, head.progress, asks, head.reason, head.foot);
  const boxes = { step: list, row: rows, ask: asks };
  const kinds = { call: callRow, notice: noticeRow, stage: stageRow, text: textRow };
  const create = c => c.op === "step" ? stepPart(graph.nodes, goTo) : c.op === "ask" ? (c.kind === "question" ? questionCard : approvalCard)(c.id, send) : kinds[c.kind](tools);
  const drop = (op, id) => {
    const part = parts[op].get(id);
    if (op === "row" && part) find.dropped(part.root);
    part?.remove?.();
    part?.root.remove();
    parts[op].delete(id);
  };

  let begun = null;

  // In the list a step stands behind what its parent has grown so far.
  function lastOf(id) {
    const family = new Set([id]);
    let last = parts.step.get(id).root;
    parts.step.forEach(({ now, root }) => { if (family.has(now.parent)) { family.add(now.id); last = root; } });
    return last;
  }

  // Shows the first row of a step, or of a step that it grew and that is drawn as one with it.
  function goTo(id) {
    const wanted = new Set([id]);
    parts.step.forEach(step => { if (step.now.within === id) wanted.add(step.now.id); });
    const row = [...parts.row.values()].find(part => wanted.has(part.of))?.root;
    if (!row) return;
    row.tabIndex = -1;
    row.scrollIntoView({ block: "nearest" });
    (row.querySelector(":scope > summary") || row).focus({ preventScroll: true });
  }

  function apply(c) {
    if (c.op === "head") return head.update(c);
    if (c.op === "graph") return graph.update(c);
    if (c.op === "asked") return drop("ask", c.id);
    if (c.op === "text") {
      const row = parts.row.get(c.id);
      row?.grow(c);
      return row && find.changed(row);
    }
    let part = parts[c.op].get(c.id);
    if (!part) {
      part = create(c);
      parts[c.op].set(c.id, part);
      if (c.kind === "call") part.root.id = address(head.run(), c.id);
      if (c.op === "step" && parts.step.has(c.parent)) lastOf(c.parent).after(part.root); else boxes[c.op].append(part.root);
      if (c.op === "row") { find.added(); order.push(part.root); order.at(-NEAR)?.classList.add("kst-far"); }
    }
    part.update(c);
    if (c.op === "row") find.changed(part);
    if (c.op === "step" && c.state === "running") begun = part.now;
    if (c.step !== undefined) {
      part.of = c.step;
      if (part.step) put(part.step, parts.step.get(c.step)?.now.name || "");
    }
  }
  // While the reader is at the end, the newest line stays in sight; who scrolled up is left alone.
  function batch(changes) {
    const atEnd = rows.scrollHeight - rows.scrollTop - rows.clientHeight < 40;
    changes.forEach(apply);
    plan.hidden = parts.step.size < 2;
    el.classList.toggle("kst-several", !plan.hidden);
    if (begun) { graph.show(begun); begun = null; }
    find.settled();
    together.counted();
    asks.classList.toggle("kst-group", !together.root.hidden);
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
    lost: head.lost,
    runsCode: () => [...parts.row.values()].some(part => part.runsCode?.()),
    refused: (id, message) => parts.ask.get(id)?.refused(message),
    tick(clockNow) { if (!el.dataset.lost) { head.tick(clockNow); parts.row.forEach(part => part.tick?.(clockNow)); parts.ask.forEach(part => part.tick?.(clockNow)); } },
  };
}

// A page that was loaded anew receives no changes of outputs that were there before: the panel itself puts what is
// to remain in its place, so that the notebook is saved with it. Nothing where a front end keeps its notebook to itself.
const VIEW = "application/vnd.jupyter.widget-view+json";
const widgetOf = data => data[VIEW]?.model_id;
const label = run => "kestrel run " + run;
const html = data => [data["text/html"]].flat().join("");
// Whether an output is an older picture of a run: the last one in it, as those of the turns before stand above.
const isOld = (data, m) => !widgetOf(data) && [...html(data).matchAll(/aria-label="kestrel run ([^"]+)"/g)].at(-1)?.[1] === m.run
  && html(data) !== html(m.data);
function replace(manager, wanted, data) {
  try {
    const cells = manager.context.model.cells;
    for (let n = 0; n < cells.length; n++) {
      const outputs = cells.get(n).outputs;
      for (let i = 0; i < (outputs?.length ?? 0); i++)
        if (wanted(outputs.get(i).data)) outputs.set(i, { output_type: "display_data", data, metadata: {} });
    }
  } catch { /* no notebook to write to */ }
}

// What a page adds to the static picture of a finished run, for as long as the kernel that knows the run lives: buttons on
// code, and below the last run a line to go on with. None of it is saved.
function tend(model) {
  let last = {}, timer = 0;
  const ask = make("form", "kst-goon"), input = make("input"), button = make("button", "kst-primary", "Ask"), problem = make("div", "kst-problem"), told = block("");
  told.hidden = true;
  told.setAttribute("role", "status");
  input.type = "text";
  input.placeholder = "Go on with the conversation \u2026";
  input.setAttribute("aria-label", "Go on with the conversation");
  problem.setAttribute("role", "alert");
  button.type = "submit";
  ask.append(input, button, problem, told);
  ask.onsubmit = event => {
    event.preventDefault();
    if (!input.value.trim()) return;
    put(problem, "");
    told.hidden = true;
    button.disabled = input.disabled = true;
    model.send({ k: "ask", text: input.value });
  };
  for (const kind of ["keydown", "keypress", "keyup"]) ask.addEventListener(kind, event => event.stopPropagation());
  ask.addEventListener("focusin", event => { event.target.dataset.lmSuppressShortcuts = "true"; });
  const tools = model.widget_manager?.context && { insert: code => insertCell(model.widget_manager, code) };
  if (tools) {
    const step = make("button", "", "Step through");
    step.type = "button";
    step.title = "Insert a cell with a slider over the events of this run";
    step.onclick = () => { if (!tools.insert("%kestrel show " + last.run + " --slider")) put(problem, "Type it into a cell: %kestrel show " + last.run + " --slider"); };
    problem.before(step);
  }
  const look = () => {
    const found = [...document.querySelectorAll('section[aria-label="' + label(last.run) + '"]')].at(-1);
    if (!found) return ask.remove();
    if (!found.classList.contains("kst-still")) followed(found);
    found.classList.add("kst-still");
    dress(found, tools);
    found.querySelectorAll("details[data-call]:not(:has(.kst-undo)) > summary").forEach(
      summary => summary.append(undoButton(summary.parentNode.dataset.call, message => model.send(message))));
    if (!last.ask) ask.remove(); else if (ask.parentNode !== found) found.append(ask);
  };
  return {
    still(m) { last = m; button.disabled = input.disabled = false; look(); timer ||= setInterval(look, 300); },
    told(text) { put(told, text); told.hidden = !text; input.value = ""; button.disabled = input.disabled = false; input.focus(); },
    problem(message) { put(problem, message); button.disabled = input.disabled = false; },
    end() { clearInterval(timer); ask.remove(); },
  };
}

// A new code cell below the active one. False where a front end keeps its notebook to itself.
function insertCell(manager, source) {
  try {
    const { cells, sharedModel } = manager.context.model, active = document.querySelector(".jp-Notebook .jp-Cell.jp-mod-active");
    const place = active ? [...active.parentElement.querySelectorAll(":scope > .jp-Cell")].indexOf(active) + 1 : cells.length;
    sharedModel.insertCell(place, { cell_type: "code", source, metadata: {} });
    return true;
  } catch { return false; }
}

// The notebook of the page, for the agent's tools: its cells, and one cell in the place of another if it still is as expected.
const PAGE = Math.random().toString(36).slice(2);
const light = output => !output.data ? output : {
  ...output, data: Object.fromEntries(Object.entries(output.data).map(([kind, data]) => [kind, kind === "text/plain" ? data : ""])),
};
function cellForm(cell, whole) {
  const form = { ...cell.toJSON(), source: cell.getSource() };
  return whole && cell.id.startsWith(whole) || !form.outputs ? form : { ...form, outputs: form.outputs.map(light) };
}
function swapCell(sharedModel, { before, after, below, force }) {
  const { cells } = sharedModel, place = id => cells.findIndex(cell => cell.id === id), at = place((before || after).id), cell = cells[at];
  if (!before) {
    if (cell) return "is there already";
    const above = place(below);
    if (below && above < 0 && !force) return "has no place: the cell above is gone";
    sharedModel.insertCell(below && above < 0 ? cells.length : above + 1, { metadata: {}, ...after });
  } else if (!cell) return "is not there any more";
  else if (!force && (cell.cell_type !== before.cell_type || cell.getSource() !== before.source)) return "was changed since";
  else if (!after) sharedModel.deleteCell(at);
  else {
    if (cell.getSource() !== after.source) cell.setSource(after.source);
    if (JSON.stringify(after.outputs) !== JSON.stringify(before.outputs)) { cell.setOutputs(after.outputs); cell.execution_count = after.execution_count; }
  }
}
function aboutCells(manager, m, send) {
  if (m.page && m.page !== PAGE) return;
  const answer = { k: "cells", n: m.n, page: PAGE };
  try {
    const { sharedModel } = manager.context.model;
    if (m.op === "read") answer.cells = sharedModel.cells.map(cell => cellForm(cell, m.whole));
    if (m.op === "swap") answer.conflict = swapCell(sharedModel, m) || "";
  } catch (error) { answer.problem = String(error); }
  send(answer);
}

// Stops the run of a panel; gives what a person has to know where that was not possible. A message waits in the kernel while
// code keeps it busy, or in older kernels until the cell ends. So what the kernel does not answer is followed by what the
// notebook's own button does. That would end another cell where no cell waits for the run and no code of it runs.
const ANSWER_MS = 700;
function stopper(model, holdsKernel) {
  // A page without a notebook, as that of `kestrel serve`, stops runs by its own connection.
  if (model.stopsRuns) return { press: async () => { model.send({ k: "stop" }); return ""; }, heard() {} };
  const kernel = model.widget_manager?.context?.sessionContext?.session?.kernel;
  if (!kernel) return { press: null, heard() {} };
  let answered = false;
  const press = async () => {
    answered = false;
    model.send({ k: "stop" });
    await new Promise(done => setTimeout(done, ANSWER_MS));
    if (answered) return "";
    if (!holdsKernel()) return "Another cell keeps the kernel busy: the run stops when that ends.";
    try { await kernel.interrupt(); return ""; } catch (error) { return "The kernel could not be interrupted: " + error.message; }
  };
  return { press, heard() { answered = true; } };
}

// Cells that were queued behind the one that waits for a run still wait in the kernel after a reload, but the new page shows them
// like cells that nobody ran. So the page that ran them counts them in the widget, and a page that was loaded since says it.
function queueNote(model, el) {
  const note = make("div", "kst-notice");
  const runs = cell => cell?.querySelector(".jp-InputPrompt")?.textContent.includes("[*]");
  note.hidden = true;
  el.append(note);
  return () => {
    const cell = el.closest(".jp-Cell");
    if (!cell || !model.get("awaited")) return;
    if (!runs(cell)) {
      const number = model.get("queued");
      note.hidden = !number;
      put(note, (number === 1 ? "1 cell waits" : number + " cells wait") + " behind this one and will run after it. This page was loaded since and does not show their output.");
      return;
    }
    const number = [...cell.parentElement.querySelectorAll(":scope > .jp-Cell")].filter(other => other !== cell && runs(other)).length;
    note.dataset.queued = number;
    if (number !== model.get("queued")) { model.set("queued", number); model.save_changes(); }
  };
}

export default {
  // Runs as soon as the model exists, seen or not: an answer tells the kernel that clicks will arrive. The first
  // message can be sent before the front end has its channel to a busy kernel, so it is repeated until answered.
  initialize({ model }) {
    let tries = 0, heard = false;
    const finished = tend(model), manager = model.widget_manager;
    model.on("msg:custom", m => {
      heard = true;
      if (m.k === "cells") aboutCells(manager, m, message => model.send(message));
      else if (m.k === "still") { replace(manager, data => widgetOf(data) === m.id || isOld(data, m), m.data); finished.still(m); }
      else if (m.k === "undo") notUndone(m);
      else if (m.k === "problem") finished.problem(m.message);
      else if (m.k === "told") finished.told(m.text);
      else if (m.k === "next") {
        finished.end();
        replace(manager, data => !widgetOf(data) && html(data).includes(label(m.run)), m.data);
      }
    });
    const hello = () => { if (!heard && tries++ < 30) { model.send({ k: "hello" }); setTimeout(hello, 300); } };
    hello();
    return () => finished.end();
  },
  render({ model, el }) {
    if (model.get("before")) {
      const before = make("div", "kst-before"), own = make("div");
      before.append(rendered(model.get("before")));
      el.append(before, own);
      el = own;
    }
    const send = message => model.send(message);
    const stopping = stopper(model, () => model.get("awaited") || screen.runsCode());
    const tools = { insert: model.widget_manager?.context && (code => insertCell(model.widget_manager, code)), undo: send };
    const screen = view(el, send, tools, stopping.press);
    let seq = -1, skew = 0, tries = 0, whole = false;
    const resync = () => { if (!whole && tries++ < 30) { model.send({ k: "resync" }); setTimeout(resync, 500); } };
    const receive = m => {
      if (m.now) skew = Date.now() / 1000 - m.now;
      if (m.k === "snap") { screen.snap(m.changes); seq = m.seq; }
      else if (m.k === "refused") screen.refused(m.id, m.message);
      else if (m.k === "stopping") stopping.heard();
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
    // The kernel was restarted, or is gone: nobody works on the run any more, and no button reaches anybody.
    const lost = async () => {
      const live = await model.widget_manager?.get_model?.(model.get("panel"))?.then(found => found.comm_live, () => false);
      if (live === false) screen.lost(run => insertCell(model.widget_manager, "%load_ext kestrel_lab\n%kestrel resume " + run));
    };
    model.on("comm_live_update", lost);
    const timer = setInterval(() => screen.tick(Date.now() / 1000 - skew), 100);
    const tellQueue = queueNote(model, el), counting = setInterval(tellQueue, 500);
    return () => { clearInterval(timer); clearInterval(counting); whole = true; model.off("msg:custom", hear); model.off("comm_live_update", lost); model.off("change:picture", look); };
  },
};
