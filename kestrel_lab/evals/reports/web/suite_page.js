// The page of a suite: trials in a matrix of scenarios and configurations, each opened beside it. All texts go in as text.
"use strict";
(() => {
const make = (tag, cls, ...inside) => {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  node.append(...inside.filter(one => one !== null && one !== undefined && one !== ""));
  return node;
};
const set = (node, values) => { for (const [name, value] of Object.entries(values)) node.setAttribute(name, value); return node; };
const SVG = "http://www.w3.org/2000/svg";
const draw = (tag, values, ...inside) => {
  const node = set(document.createElementNS(SVG, tag), values);
  node.append(...inside);
  return node;
};
const button = (text, act, cls = "") => {
  const node = set(make("button", cls, text), { type: "button" });
  node.addEventListener("click", act);
  return node;
};
const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
const percent = x => `${Math.round(100 * x)} %`;

// A trial in the index.
const SCENARIO = 0, COLUMN = 1, EPOCH = 2, OUTCOME = 3, RUN = 4, REASON = 5, CAUSES = 6;
const MARKS = ["✓", "✗", "!"], TONES = ["pass", "fail", "broke"], WORDS = ["passed", "failed", "broke"];
const MOST_MARKS = 10; // of one cell; more are counted
const CHUNK = 60; // rows that are drawn at once
const MOST_PRINTED = 2000; // rows

// Markdown comes as nodes, texts and [tag, address, …inside], and is built without any HTML.
const TAGS = new Set("a blockquote br code em h3 h4 h5 h6 hr li ol p pre s span strong table tbody td th thead tr ul div".split(" "));
const built = nodes => nodes.map(node => {
  if (typeof node === "string") return node;
  const [tag, address, ...inside] = node, made = make(TAGS.has(tag) ? tag : "span", "", ...built(inside));
  if (tag === "a" && /^(https?:|mailto:)/.test(address)) set(made, { href: address, rel: "noopener noreferrer", target: "_blank" });
  return made;
});

// Where the data come from: this document, with blocks that are unpacked as they are asked for.
const unpack = async text => {
  const bytes = Uint8Array.from(atob(text), one => one.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
};
function documentSource() {
  const blocks = new Map(), waiting = new Map();
  let index = null;
  const parsed = new Promise(resolve => document.readyState === "loading" ? document.addEventListener("DOMContentLoaded", resolve) : resolve());
  window.kestrelBlock = (number, text) => waiting.get(number)?.(text);
  function fromFolder(number) {
    const policy = window.kestrelPolicy ||= window.trustedTypes?.createPolicy("kestrel-blocks", { createScriptURL: text => text }) || { createScriptURL: text => text };
    return new Promise((resolve, reject) => {
      waiting.set(number, resolve);
      const script = document.createElement("script");
      script.src = policy.createScriptURL(`${encodeURIComponent(index.folder)}/${number}.js`);
      script.addEventListener("error", () => { blocks.delete(number); reject(new Error(`The folder ${index.folder} is not beside this page: keep the two together.`)); });
      document.head.append(script);
    });
  }
  async function block(number) {
    if (index.folder) return unpack(await fromFolder(number));
    const there = document.getElementById(`block-${number}`) || (await parsed, document.getElementById(`block-${number}`));
    return unpack(there.textContent);
  }
  return {
    index: async () => (index = await unpack(document.getElementById("index").textContent)),
    async detail(number) {
      let which = 0, first = 0;
      while (number >= first + index.blocks[which]) first += index.blocks[which++];
      if (!blocks.has(which)) blocks.set(which, block(which));
      return (await blocks.get(which))[number - first];
    },
  };
}

// ---- Plots ----
const WIDE = 560;
function intervalPlot(plot) {
  const rows = plot.rows, ends = rows.flatMap(row => [row.mean, row.low ?? row.mean, row.high ?? row.mean]);
  const below = Math.min(0, ...ends), above = Math.max(0, ...ends), pad = .06 * (above - below) || 1, left = 190, right = 112, high = 24 * rows.length + 26;
  const scale = plot.unit === "%" && below >= 0 ? [0, 1] : [below - pad, above + pad];
  const x = value => left + (value - scale[0]) / (scale[1] - scale[0]) * (WIDE - left - right);
  const number = value => `${Math.round(100 * value)}`.replace("-", "−");
  const told = row => row.text || (plot.signed && row.mean > 0 ? "+" : "") + number(row.mean) + (plot.unit === "%" ? " %" : "") + (row.low === null ? "" : ` (${number(row.low)} to ${number(row.high)})`);
  const svg = draw("svg", { viewBox: `0 0 ${WIDE} ${high}`, role: "img", "aria-label": `${plot.title}: ${rows.map(row => `${row.label} ${told(row)}`).join("; ")}` });
  for (const at of ticks(scale)) {
    svg.append(draw("line", { x1: x(at), x2: x(at), y1: 4, y2: high - 20, class: at === 0 && plot.signed ? "axis" : "grid" }));
    svg.append(draw("text", { x: x(at), y: high - 6, "text-anchor": "middle", class: "tick" }, number(at)));
  }
  rows.forEach((row, place) => {
    const y = 16 + 24 * place;
    const label = draw("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, shorten(row.label, 28));
    label.append(draw("title", {}, row.label));
    svg.append(label);
    const group = draw("g", { class: `point ${row.tone}` });
    if (row.low !== null) group.append(
      draw("line", { x1: x(row.low), x2: x(row.high), y1: y, y2: y }), draw("line", { x1: x(row.low), x2: x(row.low), y1: y - 4, y2: y + 4 }), draw("line", { x1: x(row.high), x2: x(row.high), y1: y - 4, y2: y + 4 }));
    group.append(draw("circle", { cx: x(row.mean), cy: y, r: 4.5 }));
    svg.append(group, draw("text", { x: WIDE - right + 8, y: y + 4, class: "number" }, told(row)));
  });
  return svg;
}
function ticks([from, to]) {
  const rough = (to - from) / 4, power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 2.5, 5, 10].find(one => one * power >= rough) * power, found = [];
  for (let at = Math.ceil(from / step) * step; at <= to + 1e-9; at += step) found.push(Math.abs(at) < 1e-12 ? 0 : at);
  return found;
}
const shorten = (text, most) => text.length <= most ? text : text.slice(0, most - 1) + "…";
function scatterPlot(plot) {
  const high = 240, left = 44, bottom = 40, most = Math.max(...plot.points.map(point => point.x)) * 1.1;
  const x = value => left + value / most * (WIDE - left - 120), y = value => 10 + (1 - value) * (high - bottom - 10);
  const svg = draw("svg", { viewBox: `0 0 ${WIDE} ${high}`, role: "img", "aria-label": `${plot.title}: ${plot.points.map(point => `${point.label} ${percent(point.y)} at ${+point.x.toPrecision(3)}`).join("; ")}` });
  for (const at of [0, .25, .5, .75, 1]) svg.append(draw("line", { x1: left, x2: WIDE - 120, y1: y(at), y2: y(at), class: "grid" }), draw("text", { x: left - 6, y: y(at) + 4, "text-anchor": "end", class: "tick" }, percent(at)));
  for (const at of ticks([0, most])) svg.append(draw("text", { x: x(at), y: high - bottom + 18, "text-anchor": "middle", class: "tick" }, String(+at.toPrecision(3))));
  const left_out = plot.left_out ? ` (${plot.left_out} not known)` : "";
  svg.append(draw("text", { x: (left + WIDE - 120) / 2, y: high - 4, "text-anchor": "middle", class: "tick" }, plot.x.replaceAll("_", " ") + left_out));
  const front = plot.points.filter(point => point.best).sort((a, b) => a.x - b.x);
  svg.append(draw("polyline", { points: front.map(point => `${x(point.x)},${y(point.y)}`).join(" "), class: "front" }));
  for (const point of plot.points) {
    svg.append(draw("circle", { cx: x(point.x), cy: y(point.y), r: 5, class: point.best ? "dot" : "dot hollow" }));
    svg.append(draw("text", { x: x(point.x) + 9, y: y(point.y) - 6 }, shorten(point.label, 26)));
  }
  return svg;
}
// Its first sentence says the most.
function verdictOf(data) {
  const [, first, rest] = /^(.*?\.(?=\s)|.*)(.*)$/s.exec(data.verdict);
  return make("p", `verdict ${data.tone || ""}`, make("b", "", first), rest);
}
const figureOf = plot => make("figure", "", make("figcaption", "", plot.title), plot.kind === "scatter" ? scatterPlot(plot) : intervalPlot(plot));

function tableOf([headings, rows]) {
  const head = make("tr", "", ...headings.map(text => set(make("th", "", text), { scope: "col" })));
  const body = rows.map(row => make("tr", "", ...row.map((text, place) => place ? make("td", /^[-+$\d]/.test(text) ? "number" : "", text) : set(make("th", "", text), { scope: "row" }))));
  return make("div", "wide", make("table", "plain", make("thead", "", head), make("tbody", "", ...body)));
}
const folded = (title, ...inside) => make("details", "fold", make("summary", "", title), ...inside);

// ---- The page ----
function showPage(root, source, options = {}) {
  let data, cells, scenarioTexts, shown = [], drawn = 0, at = null, opened = null, refined = null;
  const state = { text: "", tag: "", check: "", outcome: "", sort: "", reasons: null, other: null };
  const lead = make("header", "lead"), bar = make("form", "filters"), count = set(make("p", "count"), { role: "status" });
  const grid = make("table", "matrix"), scroller = set(make("div", "scroller", grid), { "aria-label": "Trials by scenario and configuration", role: "region" });
  const trial = set(make("aside", "trial"), { "aria-label": "Trial", hidden: "" });
  const main = make("main", "", bar, count, make("div", "split", scroller, trial));
  root.replaceChildren(lead, main);

  function take(found) {
    data = found;
    cells = data.scenarios.map(() => data.columns.map(() => ({ trials: [], rate: null })));
    data.trials.forEach((one, number) => cells[one[SCENARIO]][one[COLUMN]].trials.push(number));
    for (const row of cells) for (const cell of row) cell.trials.sort((a, b) => data.trials[a][EPOCH] - data.trials[b][EPOCH]);
    for (const [scenario, column, rate] of data.rates) cells[scenario][column].rate = rate;
    scenarioTexts = data.scenarios.map(one => `${one.id}\n${one.family}\n${one.tags.join("\n")}\n${one.goal}`.toLowerCase());
    state.reasons ??= data.columns.length <= 4;
    state.sort ||= "disagreement";
    drawLead();
    drawBar();
    refresh();
  }

  // The verdict and why trials failed come first.
  function drawLead() {
    document.title = data.title;
    const why = make("p", "why");
    if (data.not_passed) {
      why.append(make("b", "", `Why ${plural(data.not_passed, "trial")}${data.why_of} did not pass: `));
      for (const [cause, n] of data.why) {
        const known = data.causes.indexOf(cause);
        why.append(set(button(`${cause} `, () => filterBy(state.check === String(known) ? "" : String(known)), "chip"), { title: "Show these trials" }));
        why.lastChild.append(make("b", "", n.toLocaleString("en")));
        why.append(" ");
      }
      if (data.causes.length > data.why.length) why.append(`and ${data.causes.length - data.why.length} other reasons`);
    } else why.append(data.trials.length ? "Every trial passed." : "No trial is there yet.");
    const plots = data.plots, tables = data.tables.map(([title, table]) => folded(title, tableOf(table)));
    const more = folded("All numbers", tableOf(data.summary), ...(plots.length > 1 ? [make("div", "plots", ...plots.slice(1).map(figureOf))] : []));
    const open = new Set([...lead.querySelectorAll("details[open] > summary")].map(one => one.textContent));
    lead.replaceChildren(
      make("div", "words",
        ...(options.back ? [options.back] : []),
        make("h1", "", data.title), make("p", "about", data.about), ...(data.live ? [set(make("p", "live", data.live), { role: "status" })] : []),
        verdictOf(data), why,
        ...data.warnings.map(text => make("p", "warning", text))),
      ...(plots.length && plots[0].rows.length ? [make("div", "first", figureOf(plots[0]))] : []),
      make("div", "folds", ...tables, more, ...(data.notes.length ? [folded("How the trials were made", ...data.notes.map(text => make("p", "note", text)))] : [])));
    for (const one of lead.querySelectorAll("details")) one.open = open.has(one.firstChild.textContent);
  }

  function select(name, label, choices) {
    const node = set(make("select", ""), { "aria-label": label, name });
    for (const [value, text] of choices) node.append(set(make("option", "", text), { value }));
    node.value = state[name];
    node.addEventListener("change", () => { state[name] = node.value; refresh(); });
    return make("label", "", make("span", "", label), node);
  }
  function drawBar() {
    const focused = document.activeElement?.name, caret = document.activeElement?.selectionStart;
    const find = set(make("input", ""), { type: "search", name: "text", placeholder: "Find in names, goals, reasons", "aria-label": "Show only trials with this text", value: state.text });
    find.addEventListener("input", () => { state.text = find.value; refined = null; refresh(); });
    const tags = [...new Set(data.scenarios.flatMap(one => one.tags))].sort(), families = [...new Set(data.scenarios.map(one => one.family).filter(Boolean))].sort();
    const kinds = [["", "any"], ...data.causes.map((text, place) => [String(place), shorten(text, 60)])];
    const outcomes = [["", "any"], ["1", "failed"], ["2", "broke"], ["not", "failed or broke"], ["0", "passed"], ["mixed", "configurations disagree"], ...(data.pairs.length ? [["sides", "changed sides"]] : [])];
    const sorts = [["disagreement", data.pairs.length ? "changed most" : "disagreement"], ["suite", "suite"], ["failures", "failures"], ["name", "name"]];
    const reasons = set(make("input", ""), { type: "checkbox", name: "reasons" });
    reasons.checked = state.reasons;
    reasons.addEventListener("change", () => { state.reasons = reasons.checked; refresh(); });
    const deep = button("Search answers and transcripts too", searchDeep, "deep");
    deep.hidden = !state.text;
    bar.replaceChildren(
      make("label", "find", make("span", "", "Text"), find),
      ...(tags.length || families.length ? [select("tag", "Tag or family", [["", "any"], ...tags.map(tag => [`t${tag}`, tag]), ...families.map(one => [`f${one}`, `family ${one}`])])] : []),
      select("check", "Failed check", kinds), select("outcome", "Outcome", outcomes), select("sort", "Sort by", sorts),
      make("label", "tick", reasons, "reasons"), button("Clear", () => { Object.assign(state, { text: "", tag: "", check: "", outcome: "" }); refined = null; drawBar(); refresh(); }), deep);
    if (focused && bar.elements[focused]) {
      bar.elements[focused].focus();
      if (focused === "text") bar.elements.text.setSelectionRange(caret, caret);
    }
  }
  bar.addEventListener("submit", event => event.preventDefault());
  function filterBy(check) {
    state.check = check;
    drawBar();
    refresh();
    main.scrollIntoView();
  }

  // Everything that was said is in blocks, which are read one after the other.
  async function searchDeep() {
    const words = state.text.toLowerCase(), found = new Set();
    for (let number = 0; number < data.trials.length; number++) {
      if (state.text.toLowerCase() !== words) return;
      if (JSON.stringify(await source.detail(number)).toLowerCase().includes(JSON.stringify(words).slice(1, -1))) found.add(number);
      if (number % 200 === 0) { count.textContent = `searching … ${number.toLocaleString("en")} of ${plural(data.trials.length, "trial")}`; await new Promise(resolve => setTimeout(resolve)); }
    }
    refined = found;
    refresh();
  }

  const passes = numbers => numbers.filter(number => data.trials[number][OUTCOME] === 0).length;
  function disagreement(row) {
    const rates = row.filter(cell => cell.trials.length).map(cell => passes(cell.trials) / cell.trials.length);
    const within = rates.reduce((sum, rate) => sum + rate * (1 - rate), 0) / (rates.length || 1);
    return rates.length ? Math.max(...rates) - Math.min(...rates) + within : 0;
  }
  const changedSides = row => data.pairs.some(([base, head]) => {
    const before = new Map(row[base].trials.map(number => [data.trials[number][EPOCH], data.trials[number][OUTCOME] === 0]));
    return row[head].trials.some(number => before.has(data.trials[number][EPOCH]) && before.get(data.trials[number][EPOCH]) !== (data.trials[number][OUTCOME] === 0));
  });
  function fits(number) {
    const one = data.trials[number], words = state.text.toLowerCase();
    if (state.check && !one[CAUSES].includes(Number(state.check))) return false;
    if (/^\d$/.test(state.outcome) && one[OUTCOME] !== Number(state.outcome)) return false;
    if (state.outcome === "not" && one[OUTCOME] === 0) return false;
    if (!words) return true;
    return refined ? refined.has(number) : scenarioTexts[one[SCENARIO]].includes(words) || data.reasons[one[REASON]].toLowerCase().includes(words) || one[RUN] === words;
  }
  function refresh() {
    const open = new Set();
    data.trials.forEach((_, number) => fits(number) && open.add(number));
    shown = [];
    let matching = 0;
    cells.forEach((row, scenario) => {
      const one = data.scenarios[scenario];
      if (state.tag && !(state.tag[0] === "t" ? one.tags.includes(state.tag.slice(1)) : one.family === state.tag.slice(1))) return;
      if (state.outcome === "mixed" && disagreement(row) === 0) return;
      if (state.outcome === "sides" && !changedSides(row)) return;
      const numbers = row.flatMap(cell => cell.trials.filter(number => open.has(number)));
      if (!numbers.length) return;
      matching += numbers.length;
      shown.push({ scenario, row, open, failed: numbers.length - passes(numbers), apart: disagreement(row) });
    });
    const order = { disagreement: (a, b) => b.apart - a.apart, failures: (a, b) => b.failed - a.failed, name: (a, b) => data.scenarios[a.scenario].id.localeCompare(data.scenarios[b.scenario].id, "en", { numeric: true }) }[state.sort];
    if (order) shown.sort(order);
    const filtered = matching < data.trials.length;
    count.textContent = filtered ? `${plural(matching, "trial")} of ${data.trials.length.toLocaleString("en")} in ${plural(shown.length, "scenario")} of ${data.scenarios.length.toLocaleString("en")}` : `${plural(matching, "trial")} in ${plural(shown.length, "scenario")}. Arrow keys move, Enter opens a trial, Esc closes it.`;
    count.append(make("span", "legend", ...MARKS.flatMap((mark, kind) => data.trials.some(one => one[OUTCOME] === kind) ? [make("i", TONES[kind], mark), ` ${WORDS[kind]} `] : [])));
    const deep = bar.querySelector(".deep");
    if (deep) deep.hidden = !state.text || refined !== null;
    drawGrid();
  }

  // Rows are drawn as they come into sight: a page of 10,000 trials has as many elements as a small one.
  function drawGrid() {
    drawn = 0;
    const head = make("tr", "", set(make("th", "", "scenario"), { scope: "col" }), ...data.columns.map(column => set(make("th", "", make("b", "", column.label), make("span", "rate", column.text)), { scope: "col" })));
    set(grid, { role: "grid", "aria-rowcount": shown.length + 1, "aria-colcount": data.columns.length + 1, "data-reasons": String(state.reasons) });
    grid.style.setProperty("--columns", data.columns.length);
    grid.replaceChildren(make("thead", "", head), make("tbody", ""));
    if (!shown.length) grid.tBodies[0].append(make("tr", "", set(make("td", "none", "No trial fits the filters."), { colspan: data.columns.length + 1 })));
    drawRows(CHUNK);
    const kept = at && shown.findIndex(one => one.scenario === at.scenario);
    if (at && kept >= 0) while (kept >= drawn) drawRows(CHUNK);
    focusable();
  }
  function drawRows(most) {
    const end = Math.min(shown.length, drawn + most), rows = [];
    for (; drawn < end; drawn++) rows.push(drawRow(shown[drawn], drawn));
    grid.tBodies[0].append(...rows);
    if (drawn < shown.length) sentinel.observe(grid.tBodies[0].lastElementChild);
  }
  const sentinel = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting) { sentinel.unobserve(entry.target); if (drawn < shown.length) drawRows(CHUNK); }
  }, { root: scroller, rootMargin: "800px" });
  function drawRow({ scenario, row, open }, place) {
    const one = data.scenarios[scenario];
    const name = make("th", "", make("b", "", one.id), ...(one.goal && one.goal !== one.id ? [set(make("span", "goal", one.goal), { title: one.goal })] : []));
    return set(make("tr", "", set(name, { scope: "row" }), ...row.map((cell, column) => drawCell(scenario, column, cell, open))), { "aria-rowindex": place + 2 });
  }
  function drawCell(scenario, column, cell, open) {
    const node = set(make("td", "cell"), { role: "gridcell", tabindex: "-1", "data-at": `${scenario} ${column}` });
    const numbers = cell.trials, passed = passes(numbers), failing = numbers.find(number => data.trials[number][OUTCOME] !== 0 && open.has(number)) ?? numbers.find(number => data.trials[number][OUTCOME] !== 0);
    if (!numbers.length) return set(make("td", "cell empty", "·"), { role: "gridcell", "aria-label": "no trial" });
    node.classList.add(passed === numbers.length ? "all" : passed ? "some" : numbers.every(number => data.trials[number][OUTCOME] === 2) ? "none-broke" : "none-passed");
    const marks = make("span", "marks");
    if (numbers.length <= MOST_MARKS) for (const number of numbers) marks.append(make("i", TONES[data.trials[number][OUTCOME]] + (open.has(number) ? "" : " dim"), MARKS[data.trials[number][OUTCOME]]));
    else for (const kind of [0, 1, 2]) {
      const n = numbers.filter(number => data.trials[number][OUTCOME] === kind).length;
      if (n) marks.append(make("i", TONES[kind], `${n}${MARKS[kind]}`));
    }
    if (numbers.length === 1) node.classList.add("single");
    node.append(marks);
    if (cell.rate) node.append(make("span", "rate", cell.rate));
    const reason = failing === undefined ? "" : data.reasons[data.trials[failing][REASON]];
    if (state.reasons && reason) node.append(make("span", "reason", reason));
    const told = numbers.length === 1 ? WORDS[data.trials[numbers[0]][OUTCOME]] : `${passed} of ${numbers.length} passed`;
    set(node, { "aria-label": `${data.scenarios[scenario].id}, ${data.columns[column].label}: ${told}${reason ? `: ${reason}` : ""}` });
    if (reason) node.title = reason;
    if (!numbers.some(number => open.has(number))) node.classList.add("dim");
    return node;
  }
  const cellAt = (scenario, column) => grid.querySelector(`[data-at="${scenario} ${column}"]`);
  function focusable() {
    for (const one of grid.querySelectorAll('[tabindex="0"], .here')) { one.tabIndex = -1; one.classList.remove("here"); }
    const node = (at && cellAt(at.scenario, at.column)) || grid.querySelector(".cell[data-at]");
    if (node) node.tabIndex = 0;
    if (opened && node && at && node === cellAt(at.scenario, at.column)) node.classList.add("here");
    return node;
  }
  function moveTo(scenario, column, focus = true) {
    at = { scenario, column };
    const node = focusable();
    if (focus && node) { node.focus({ preventScroll: false }); node.scrollIntoView({ block: "nearest", inline: "nearest" }); }
    if (opened) openCell(scenario, column);
  }
  grid.addEventListener("click", event => {
    const node = event.target.closest("[data-at]");
    if (!node || String(getSelection())) return;
    const [scenario, column] = node.dataset.at.split(" ").map(Number);
    opened = opened || {};
    moveTo(scenario, column);
  });
  grid.addEventListener("keydown", event => {
    const node = event.target.closest("[data-at]");
    if (!node || event.ctrlKey || event.altKey || event.metaKey) return;
    const [scenario, column] = node.dataset.at.split(" ").map(Number), place = shown.findIndex(one => one.scenario === scenario);
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-10, 0], PageDown: [10, 0], Home: [0, -column], End: [0, data.columns.length - 1 - column] };
    if (event.key === "Enter" || event.key === " ") { opened = opened || {}; moveTo(scenario, column); }
    else if (steps[event.key]) step(place, column, steps[event.key]);
    else return;
    event.preventDefault();
  });
  function step(place, column, [down, right]) {
    const next = Math.max(0, Math.min(shown.length - 1, place + down));
    while (next >= drawn) drawRows(CHUNK);
    let to = column + right;
    // A configuration that did not try this scenario is passed over.
    while (right && to >= 0 && to < data.columns.length && !shown[next].row[to].trials.length) to += Math.sign(right);
    if (to < 0 || to >= data.columns.length) to = column;
    if (!shown[next].row[to].trials.length) to = shown[next].row.findIndex(cell => cell.trials.length);
    moveTo(shown[next].scenario, to);
  }
  document.addEventListener("keydown", event => {
    if (!root.isConnected) return;
    if (event.key === "Escape" && opened) { close(); event.preventDefault(); }
    else if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) { bar.elements.text.focus(); event.preventDefault(); }
  });

  // ---- One trial, or two beside each other ----
  const narrow = () => matchMedia("(max-width: 1100px)").matches;
  function close() {
    opened = null;
    trial.hidden = true;
    document.body.classList.remove("opened", "two");
    options.address?.("");
    focusable()?.focus();
  }
  async function openCell(scenario, column, number) {
    const cell = cells[scenario][column];
    const wanted = opened?.epoch, failing = cell.trials.find(one => data.trials[one][OUTCOME] !== 0);
    const which = number ?? cell.trials.find(one => data.trials[one][EPOCH] === wanted) ?? failing ?? cell.trials[0];
    if (which === undefined) return;
    opened = { scenario, column, number: which, epoch: data.trials[which][EPOCH] };
    focusable();
    const asked = opened, pair = data.pairs.find(one => one.includes(column));
    if (pair && state.other === null) state.other = "pair";
    const other = state.other === "pair" && pair ? pair.find(one => one !== column) : typeof state.other === "number" && state.other !== column ? state.other : null;
    // The base of a comparison is on the left, whichever of both was opened.
    const sides = other === null ? [column] : pair && pair.includes(other) ? pair : [column, other];
    const numbers = sides.map(side => side === column ? which : sameEpoch(scenario, side, asked.epoch));
    let details;
    try {
      details = await Promise.all(numbers.map(one => one === undefined ? null : source.detail(one)));
    } catch (error) {
      details = null;
      trial.replaceChildren(trialHead(scenario, column, sides), set(make("p", "warning", error.message), { role: "alert" }));
    }
    if (opened !== asked) return;
    if (details) trial.replaceChildren(trialHead(scenario, column, sides), trialBody(scenario, sides, numbers, details));
    trial.hidden = false;
    trial.scrollTop = 0;
    document.body.classList.add("opened");
    document.body.classList.toggle("two", sides.length > 1);
    options.address?.(data.trials[which][RUN]);
    if (narrow()) trial.querySelector("button")?.focus();
    else if (innerHeight - trial.getBoundingClientRect().top < .6 * innerHeight) main.scrollIntoView();
    if (!narrow()) cellAt(scenario, column)?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  const sameEpoch = (scenario, column, epoch) => cells[scenario][column].trials.find(one => data.trials[one][EPOCH] === epoch) ?? cells[scenario][column].trials[0];
  function trialHead(scenario, column, sides) {
    const place = shown.findIndex(one => one.scenario === scenario);
    const cell = cells[scenario][column], head = make("div", "trial-head");
    const beside = set(make("select", ""), { "aria-label": "Beside it" });
    beside.append(set(make("option", "", "nothing"), { value: "" }), ...data.columns.map((one, number) => [one, number]).filter(([, number]) => number !== column && cells[scenario][number].trials.length).map(([one, number]) => set(make("option", "", one.label), { value: String(number) })));
    beside.value = sides.length > 1 ? String(sides.find(side => side !== column)) : "";
    beside.addEventListener("change", () => { state.other = beside.value === "" ? "" : Number(beside.value); openCell(scenario, column); });
    const tabs = set(make("span", "tabs"), { role: "group", "aria-label": "Epochs" });
    if (cell.trials.length > 1) for (const number of cell.trials) {
      const one = data.trials[number], chosen = number === opened?.number;
      tabs.append(set(button(`${one[EPOCH]} ${MARKS[one[OUTCOME]]}`, () => openCell(scenario, column, number), `${TONES[one[OUTCOME]]}`), { "aria-pressed": String(chosen), "aria-label": `epoch ${one[EPOCH]}: ${WORDS[one[OUTCOME]]}` }));
    }
    const go = (text, label, by) => { const node = set(button(text, () => step(place, column, [by, 0])), { "aria-label": label, title: label }); node.disabled = place < 0 || place + by < 0 || place + by >= shown.length; return node; };
    head.append(
      make("h2", "", data.scenarios[scenario].id), ...(cell.trials.length > 1 ? [make("span", "soft", "epoch"), tabs] : []), make("span", "gap"),
      make("label", "soft", "beside it ", beside), make("span", "", go("↑", "Scenario before", -1), " ", go("↓", "Next scenario", 1), " ", set(button("✕", close), { "aria-label": "Close (Esc)", title: "Close (Esc)" })));
    return head;
  }
  const section = (title, ...inside) => make("section", "", make("h3", "", title), ...inside);
  const text = (words, cls = "") => make("div", `said ${cls}`, words);
  function trialBody(scenario, sides, numbers, details) {
    const known = details.find(Boolean);
    const task = [section("Goal", text(known.goal || data.scenarios[scenario].goal), ...known.turns.map(turn => text(`then: ${turn}`))), ...(known.expected ? [section("Expected", text(known.expected))] : [])];
    if (sides.length === 1) {
      const [detail] = details;
      return make("div", "one", make("div", "facts", outcomeLine(numbers[0], detail, sides[0]), ...task, section("Answer", detail.nodes ? make("div", "answer formed", ...built(detail.nodes)) : answer(detail.answer)), section("Checks", checks(detail)), facts(numbers[0], detail)),
        make("div", "story", section("Transcript", ...transcript(detail, numbers[0]))));
    }
    const answers = details.map(detail => detail?.answer ?? "");
    const apart = firstDifference(...answers), both = details.every(detail => detail?.transcript.length);
    const told = apart < 0 ? "The answers are the same." : "";
    return make("div", "both", ...task, make("div", "pair", ...details.map((detail, place) => make("div", "side",
      ...(detail === null ? [make("h3", "", data.columns[sides[place]].label), make("p", "soft", "did not try this scenario")] : [
        outcomeLine(numbers[place], detail, sides[place]), section("Answer", answer(detail.answer, apart, answers[1 - place].length), ...(told ? [make("p", "soft", told)] : [])),
        section("Checks", checks(detail)), ...(both ? [] : [section("Transcript", ...transcript(detail, numbers[place]))]), facts(numbers[place], detail)])))),
      ...(both ? [section("Transcripts", ...beside(details.map(detail => detail.transcript), sides.map(side => data.columns[side].label)))] : []));
  }
  function outcomeLine(number, detail, column) {
    const one = data.trials[number], failed = detail.checks.filter(check => !check[1]);
    const line = make("p", `outcome ${TONES[one[OUTCOME]]}`, make("b", "", `${MARKS[one[OUTCOME]]} ${WORDS[one[OUTCOME]]}`), ` ${data.columns[column].label}${data.several ? `, epoch ${one[EPOCH]}` : ""}`);
    if (one[OUTCOME] !== 0) line.append(make("span", "because", failed.length ? `expected: ${failed[0][0]}; found: ${failed[0][2] || "it did not hold"}` : detail.reason || "no reason given"));
    return line;
  }
  function checks(detail) {
    if (!detail.checks.length) return make("p", "soft", detail.reason ? `No check was reached: ${detail.reason}` : "No check was reached.");
    const rows = detail.checks.map(([name, passed, found, kept]) => make("tr", passed ? "pass" : "fail",
      set(make("td", "mark", passed ? "✓" : "✗"), { "aria-label": passed ? "passed" : "failed" }), make("td", "", name), make("td", "", found || (passed ? "as expected" : "it did not hold"), ...(kept ? [make("small", "", " (old score, kept)")] : []))));
    const head = make("tr", "", make("td", ""), set(make("th", "", "expected"), { scope: "col" }), set(make("th", "", "found"), { scope: "col" }));
    const other = detail.reason && detail.checks.every(check => check[1]) ? [make("p", "because", detail.reason)] : [];
    return make("div", "wide", make("table", "checks", make("thead", "", head), make("tbody", "", ...rows)), ...other);
  }
  const facts = (number, detail) => make("p", "soft", [detail.model, detail.used, detail.commit ? `commit ${detail.commit.slice(0, 10)}` : "", `kestrel show ${data.trials[number][RUN]}`].filter(Boolean).join(" · "));

  // The place from which two texts differ, at the beginning of a word; -1 where they are the same.
  function firstDifference(one, other) {
    if (one === other) return -1;
    let place = 0;
    while (place < one.length && one[place] === other[place]) place++;
    while (place > 0 && /\S/.test(one[place - 1])) place--;
    return place;
  }
  function answer(words, apart = -1, others = 0) {
    if (!words) return make("p", "soft", "There is no answer.");
    const box = make("div", "said answer");
    if (apart < 0) { box.append(words); return box; }
    const end = apart + /^\s*\S*/.exec(words.slice(apart))[0].length;
    const marked = set(make("mark", "", words.slice(apart, end) || " "), { "aria-label": `first difference: ${words.slice(apart, end) || "it ends here"}`, title: "first difference" });
    if (apart >= words.length) marked.textContent = others > words.length ? "⟨ends here⟩" : "";
    box.append(words.slice(0, apart), marked, words.slice(end));
    return box;
  }
  function transcript(detail, number) {
    if (!detail.stored) return [make("p", "soft", "The log of this run is not in this store.")];
    if (!detail.transcript.length) return [make("p", "soft", `Nothing was recorded: kestrel show ${data.trials[number][RUN]}`)];
    return detail.transcript.map(transcriptRow);
  }

  // Which rows of two transcripts correspond, with the weights of `kestrel align`: evals/transcripts/alignment.py.
  const GAP = -.4, MOST_WEIGHED = 1e6;
  const plain = words => (words || "").replace(/\s+/g, " ").trim().toLowerCase();
  const argsOf = row => JSON.stringify([...(row.args || [])].sort());
  const saidBy = row => plain(row.k === "call" ? row.result : row.text);
  function likeness(one, other) {
    if (one.k !== other.k) return one.k !== "call" && other.k !== "call" && one.k !== "notice" && other.k !== "notice" ? .1 : -2;
    if (one.k !== "call") return saidBy(one) === saidBy(other) ? 3 : .5;
    if (one.tool !== other.tool) return -1;
    if (argsOf(one) !== argsOf(other)) {
      const known = new Map(one.args), shared = other.args.filter(([name, value]) => known.get(name) === value).length;
      return .6 + .9 * shared / Math.max(1, one.args.length, other.args.length);
    }
    return saidBy(one) === saidBy(other) ? 3 : 2;
  }
  function aligned(one, other) {
    const pairs = [];
    while (pairs.length < Math.min(one.length, other.length) && likeness(one[pairs.length], other[pairs.length]) === 3) pairs.push([one[pairs.length], other[pairs.length]]);
    const [left, right] = [one.slice(pairs.length), other.slice(pairs.length)], wide = right.length + 1;
    // Too long to be weighed pair by pair: row beside row.
    if (left.length * right.length > MOST_WEIGHED) return [...pairs, ...Array.from({ length: Math.max(left.length, right.length) }, (_, place) => [left[place], right[place]])];
    const best = new Float64Array((left.length + 1) * wide), alike = new Float64Array(best.length);
    for (let a = left.length; a >= 0; a--) for (let b = right.length; b >= 0; b--) {
      const here = a * wide + b;
      if (a < left.length && b < right.length) alike[here] = best[here + wide + 1] + likeness(left[a], right[b]);
      best[here] = a === left.length ? GAP * (right.length - b) : b === right.length ? GAP * (left.length - a) : Math.max(alike[here], best[here + wide] + GAP, best[here + 1] + GAP);
    }
    for (let a = 0, b = 0; a < left.length || b < right.length;) {
      const here = a * wide + b;
      if (a < left.length && b < right.length && best[here] === alike[here]) pairs.push([left[a++], right[b++]]);
      else if (a < left.length && (b === right.length || best[here] === best[here + wide] + GAP)) pairs.push([left[a++], undefined]);
      else pairs.push([undefined, right[b++]]);
    }
    return pairs;
  }
  function differs(one, other) {
    if (!one || !other) return "only here";
    if (likeness(one, other) === 3) return "";
    return one.k !== "call" || one.tool !== other.tool ? "differs" : argsOf(one) === argsOf(other) ? "other answer" : "other arguments";
  }
  function beside(transcripts, labels) {
    // A turn of a model without a text is no step: its calls are.
    const rows = aligned(...transcripts.map(steps => steps.filter(row => row.k !== "text" || row.text || row.thinking))), apart = rows.findIndex(pair => differs(...pair)), before = apart < 0 ? rows.length : apart;
    const told = `${plural(before, "step")} ${before === 1 ? "is" : "are"} the same in both${apart < 0 ? "" : ", then they part"}`;
    const table = make("div", "pair steps", ...labels.map(label => make("b", "soft", label)));
    rows.slice(before).forEach((pair, place) => pair.forEach((row, side) => {
      const node = row ? transcriptRow(row) : make("p", "soft absent", "no such step");
      const word = differs(...pair);
      if (row && word) node.prepend(make("small", "flag", place ? word : "first difference"));
      if (!place) node.classList.add("apart");
      table.append(set(node, { "data-side": labels[side] }));
    }));
    return [before ? folded(told, ...rows.slice(0, before).map(([row]) => transcriptRow(row))) : make("p", "soft", "They part at the first step."), ...(apart < 0 ? [] : [table])];
  }
  const CALLS = { ok: "✓", error: "✗", denied: "⊘", stopped: "■" };
  function transcriptRow(row) {
    if (row.k === "call") {
      const bad = row.state !== "ok", node = make("div", `row call ${bad ? "bad" : ""}`);
      node.append(make("div", "what", make("span", "mark", CALLS[row.state] || "·"), bad ? `${row.state} ` : "", make("b", "", row.tool), " ", make("code", "", row.text || ""), make("span", "gap"), make("small", "", [row.took, row.note].filter(Boolean).join(" · "))));
      const args = row.args.filter(([, value]) => !(row.text || "").includes(value));
      if (args.length) node.append(folded("arguments", ...args.map(([name, value]) => make("div", "", make("small", "", name), make("pre", "", value)))));
      if (row.result) node.append(row.result.length > 1200 ? folded(shorten(row.result.split("\n", 1)[0], 100), make("pre", "", row.result)) : make("pre", "", row.result));
      if (row.diff) node.append(make("pre", "diff", ...row.diff.split("\n").map(line => make("span", line[0] === "+" ? "added" : line[0] === "-" ? "removed" : "", `${line}\n`))));
      return node;
    }
    const node = make("div", `row ${row.k} ${row.state}`);
    if (row.thinking) node.append(folded("thinking", make("div", "said", row.thinking)));
    if (row.k === "answer") node.append(make("small", "label", "answer"));
    if (row.text) node.append(row.nodes ? make("div", "formed", ...built(row.nodes)) : make("div", "said", row.text));
    if (row.note) node.append(make("small", "soft", row.note));
    return node;
  }

  function openRun(run) {
    const number = data.trials.findIndex(one => one[RUN] === run);
    if (number < 0) return;
    const [scenario, column] = data.trials[number];
    opened = { epoch: data.trials[number][EPOCH] };
    while (drawn < shown.length && !cellAt(scenario, column)) drawRows(CHUNK);
    at = { scenario, column };
    openCell(scenario, column, number);
  }
  addEventListener("beforeprint", () => {
    while (drawn < Math.min(shown.length, MOST_PRINTED)) drawRows(CHUNK);
    for (const one of root.querySelectorAll("details.fold")) one.open = true;
  });
  return { root, take, openRun };
}

globalThis.kestrelSuitePage = { make, set, button, plural, showPage };
if (document.getElementById("index")) (async () => {
  const source = documentSource(), runOf = () => /^#run-(.+)/.exec(location.hash)?.[1];
  const index = await source.index();
  const page = showPage(document.getElementById("page"), source, {
    address: run => history.replaceState(null, "", run ? `#run-${run}` : location.pathname + location.search),
  });
  page.take(index);
  if (runOf()) page.openRun(decodeURIComponent(runOf()));
  addEventListener("hashchange", () => runOf() && page.openRun(decodeURIComponent(runOf())));
  requestAnimationFrame(() => setTimeout(() => performance.mark("kestrel-shown")));
})();
})();
