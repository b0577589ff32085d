// The pages of `kestrel eval view`: a list of stored eval runs, and the page of each, followed while it goes on.
"use strict";
(() => {
const { make, set, button, plural, showPage } = globalThis.kestrelSuitePage;
const root = document.getElementById("page");
const EVERY_MS = 2000;

// The token comes behind the # of the address, which is not sent anywhere, and is taken out of it at once.
const KEY = "kestrel-token";
const asked = () => new URLSearchParams(location.hash.slice(1));
const given = asked();
if (given.has("token")) {
  sessionStorage.setItem(KEY, given.get("token"));
  given.delete("token");
  history.replaceState(null, "", location.pathname + (String(given) ? `#${given}` : ""));
}
async function ask(path, values = {}) {
  const response = await fetch(`v1/${path}?${new URLSearchParams(values)}`, { headers: { Authorization: `Bearer ${sessionStorage.getItem(KEY) || ""}` } });
  if (response.status === 204) return null;
  const reply = await response.json();
  if (!response.ok) throw new Error([reply.message, reply.todo].filter(Boolean).join(": "));
  return reply;
}
function complain(error) {
  let node = document.getElementById("trouble");
  if (!node) { node = set(make("p", "warning"), { id: "trouble", role: "status" }); root.prepend(node); }
  node.className = "warning";
  node.textContent = error instanceof TypeError ? "The server cannot be reached: start kestrel eval view again." : error.message;
}
const content = () => document.getElementById("trouble")?.remove();

let turn = 0; // of what is shown; what belongs to an earlier one stops
async function show() {
  const mine = ++turn, { suite, run, trial } = Object.fromEntries(asked());
  try {
    await (suite === undefined ? list(mine) : page(mine, suite, run || "", trial));
  } catch (error) {
    if (mine === turn) complain(error);
  }
}
const wait = () => new Promise(resolve => setTimeout(resolve, EVERY_MS));
const shown = () => requestAnimationFrame(() => setTimeout(() => performance.mark("kestrel-shown")));

async function list(mine) {
  for (let before = ""; mine === turn; await wait()) {
    const found = await ask("suites"), now = JSON.stringify(found);
    if (mine !== turn) return;
    if (now !== before) {
      const heading = make("tr", "", ...["suite", "when", "trials", "passed", "failed", "broke", "commit"].map(text => set(make("th", "", text), { scope: "col" })));
      const rows = found.map(one => {
        const link = set(make("a", "", one.suite), { href: `#${new URLSearchParams({ suite: one.suite, run: one.eval_run })}` });
        const sofar = one.of > one.trials ? `${one.trials} of ${one.of}` : String(one.trials);
        return make("tr", "", set(make("th", "", link), { scope: "row" }), make("td", "", new Date(1000 * one.at).toLocaleString()), make("td", "", sofar), make("td", "pass", String(one.passed)), make("td", one.failed ? "fail" : "", String(one.failed)), make("td", one.broke ? "broke" : "", String(one.broke)), make("td", "soft", one.commit.slice(0, 10)));
      });
      document.title = "kestrel eval view";
      root.replaceChildren(make("h1", "", "Stored eval runs"), make("p", "about", found.length ? plural(found.length, "eval run") : "No suite was run yet: kestrel eval run SUITE."),
        ...(found.length ? [make("div", "wide", make("table", "plain", make("thead", "", heading), make("tbody", "", ...rows)))] : []));
      shown();
    } else content();
    before = now;
  }
}

async function page(mine, suite, run, trial) {
  let index = null, seen = "";
  const details = new Map();
  const source = {
    async detail(number) {
      const name = index.trials[number][4];
      if (!details.has(name)) details.set(name, ask("trial", { run: name }).catch(error => { details.delete(name); throw error; }));
      return details.get(name);
    },
  };
  const back = button("‹ All suites", () => { location.hash = ""; });
  const address = open => history.replaceState(null, "", `#${new URLSearchParams({ suite, run, ...(open ? { trial: open } : {}) })}`);
  const drawn = showPage(document.createElement("div"), source, { back, address });
  for (; mine === turn; await wait()) {
    let found;
    try {
      found = await ask("page", { suite, eval_run: run, seen });
    } catch (error) {
      if (mine === turn) complain(error);
      continue;
    }
    if (mine !== turn) return;
    content();
    if (!found) continue;
    if (!seen) root.replaceChildren(drawn.root);
    ({ index, stamp: seen } = found);
    drawn.take(index);
    if (trial) { drawn.openRun(trial); trial = ""; }
    shown();
  }
}

addEventListener("hashchange", show);
show();
})();
