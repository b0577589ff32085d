// The box for labels: shows what the kernel says and sends keys back. It decides nothing, and every text goes in as text.

const make = (tag, cls, text) => {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  if (text !== undefined) node.textContent = text;
  return node;
};
const KEYS = [["1", "met"], ["0", "not met"], ["s", "skip"], ["n", "note"], ["u", "undo"], ["t", "calls"], ["r", "rubric"]];

function part(name, text, cls) {
  const box = make("section", "ksl-part " + (cls || ""));
  box.append(make("h4", "", name), make("div", "ksl-text", text));
  return box;
}

// Calls are folded; each opens by itself, and all of them by a key.
function transcript(steps) {
  const box = make("section", "ksl-part ksl-steps");
  box.append(make("h4", "", "what the agent did"));
  for (const step of steps) {
    if (step.kind !== "call") { box.append(make("div", "ksl-text ksl-" + step.kind, step.text)); continue; }
    const call = make("details", "ksl-call"), body = make("pre", "", step.text);
    body.tabIndex = 0;
    call.append(make("summary", "", step.title), body);
    box.append(call);
  }
  box.hidden = !steps.length;
  return box;
}

export default {
  render({ model, el }) {
    const root = make("div", "kst ksl"), top = make("header", "kst-bar"), where = make("strong"), who = make("span", "kst-soft");
    const meter = make("progress"), body = make("div", "ksl-body"), said = make("div", "ksl-said"), keys = make("footer", "ksl-keys");
    const form = make("form", "ksl-form"), field = make("textarea"), hint = make("label");
    root.tabIndex = 0;
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", "label trials by keys: 1 met, 0 not met, s skip, n note, u undo, t calls, r rubric");
    // JupyterLab takes keys such as 0 and s before the page does; this keeps its hands off.
    root.setAttribute("data-lm-suppress-shortcuts", "true");
    said.setAttribute("role", "status");
    field.rows = 3;
    field.id = "ksl-" + Math.random().toString(36).slice(2);
    hint.htmlFor = field.id;
    top.append(where, meter, make("span", "kst-gap"), who);
    form.append(hint, field);
    form.hidden = true;
    root.append(top, said, body, form, keys);
    el.append(root);

    let note = "", asking = "", shown = "", sent = false;
    const state = () => model.get("state");
    const tell = text => { said.textContent = text; said.hidden = !text; };
    const lost = "nobody answers: the kernel was restarted, or is busy. Every label that was counted is stored; run the cell again to go on";
    let waits = 0;
    // Until the kernel has answered a second press would mean a trial that is not shown yet.
    const send = (k, more) => {
      if (sent) return;
      sent = true;
      waits = setTimeout(() => { sent = false; tell(lost); }, 8000);
      model.send({ k, ...more });
    };
    const close = () => { form.hidden = true; asking = ""; root.focus({ preventScroll: true }); };
    const open = what => {
      asking = what;
      hint.textContent = what === "note" ? "Note (Enter keeps it, Escape leaves it)" : "Rubric: a new version (Ctrl-Enter keeps it, Escape leaves it)";
      field.value = what === "note" ? note : state().rubric;
      form.hidden = false;
      field.focus();
    };
    const keep = () => {
      const text = field.value, what = asking;
      close();
      if (what === "note") { note = text; tell(note.trim() ? "note: " + note : ""); }
      else if (text.trim() && text.trim() !== state().rubric) send("rubric", { text });
    };
    const press = key => {
      const { item } = state();
      if (key === "u") send("undo", {});
      else if (key === "r") open("rubric");
      else if (!item) return false;
      else if ("10s".includes(key)) send("label", { run: item.run, repeat: item.repeat, value: key === "s" ? null : Number(key), text: note });
      else if (key === "n") open("note");
      else if (key === "t") {
        const calls = [...body.querySelectorAll("details")], unfold = calls.some(one => !one.open);
        for (const one of calls) one.open = unfold;
      } else return false;
      return true;
    };
    root.addEventListener("keydown", event => {
      event.stopPropagation();
      if (event.target === field) {
        if (event.key === "Escape") close();
        else if (event.key === "Enter" && (asking === "note" ? !event.shiftKey : event.ctrlKey || event.metaKey)) keep();
        else return;
        event.preventDefault();
      } else if (!event.ctrlKey && !event.metaKey && !event.altKey && event.key.length === 1 && press(event.key.toLowerCase())) event.preventDefault();
    });
    form.addEventListener("submit", event => { event.preventDefault(); keep(); });
    for (const [key, name] of KEYS) {
      const button = make("button", "ksl-key");
      button.type = "button";
      button.dataset.key = key;
      button.append(make("kbd", "", key), " " + name);
      button.onclick = () => { press(key); if (!asking) root.focus({ preventScroll: true }); };
      keys.append(button);
    }

    const draw = () => {
      const now = state(), { item } = now;
      sent = false;
      clearTimeout(waits);
      where.textContent = item ? `${now.done + 1} of ${now.total}` : `${now.done} of ${now.total} labelled`;
      who.textContent = `${now.suite} · ${now.who}`;
      meter.max = Math.max(1, now.total);
      meter.value = now.done;
      meter.setAttribute("aria-label", "labelled");
      tell(now.message);
      for (const button of keys.children) button.disabled = !item && !"ur".includes(button.dataset.key);
      const of = JSON.stringify([item, now.rubric, now.report, now.outdated, now.elsewhere]);
      if (of === shown) return;
      shown = of;
      note = "";
      body.replaceChildren(part("rubric", now.rubric, "ksl-rubric"));
      if (now.outdated) body.append(make("div", "ksl-older", `${now.outdated} of your labels are by an earlier version of the rubric and are not counted`));
      if (now.elsewhere) body.append(make("div", "ksl-older", `${now.elsewhere} of your labels are of other trials of this suite`));
      if (!item) { body.append(make("pre", "ksl-report", now.report)); return; }
      body.append(part("goal", item.goal), transcript(item.transcript), part("answer", item.answer || "(no answer)", "ksl-answer"));
      if (item.checks.length) body.append(part("checks", item.checks.join("\n"), "ksl-checks"));
      if (item.seen) body.append(make("div", "ksl-older", "You labelled this trial by an earlier version of the rubric."));
      body.scrollTop = 0;
    };
    model.on("change:state", draw);
    draw();
    if (Date.now() / 1000 < model.get("fresh_until")) setTimeout(() => root.focus(), 150);
    return () => { clearTimeout(waits); model.off("change:state", draw); };
  },
};
