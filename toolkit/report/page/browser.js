// The completion browser: a list that draws only what is in view, filters, search, and the texts side by side.

const RIGHT = 1, LENIENT = 2, FORMED = 4, CUT = 8, UNUSED = 16;
const ROW_HEIGHT = 58;
const TAGS = /<\/?(?:reasoning|answer|think)>/g;

function completionBrowser(data) {
  const views = {};
  if (data.training) views.training = trainingView(data.training, data.graded);
  if (data.answers) views.answers = answersView(data.answers, data.graded);
  const state = { view: null, filter: "all", order: "given", query: "", step: null, model: "any", shown: [] };
  const parts = browserParts(views);
  const api = { node: parts.node, showStep: null };

  const list = virtualList(parts.list, {
    draw: (item) => state.view.row(item, state),
    pick: (item) => select(item),
  });

  function open(name) {
    state.view = views[name];
    Object.assign(state, { filter: "all", order: "given", step: null, model: "any" });
    parts.tabs.querySelectorAll("button").forEach((tab) => tab.setAttribute("aria-selected", String(tab.dataset.view === name)));
    fillChoices(parts, state);
    apply();
  }

  function apply() {
    const query = state.query.toLowerCase();
    const keep = state.view.filters[state.filter].keep;
    state.shown = state.view.items.filter((item) => state.view.inScope(item, state) && keep(item, state) && (!query || state.view.matches(item, query)));
    const order = state.view.orders[state.order];
    if (order.by) state.shown.sort((one, other) => order.by(one, other));
    const total = state.view.items.length;
    parts.count.textContent = `${state.shown.length.toLocaleString("en")} of ${total.toLocaleString("en")} ${state.view.noun}`;
    parts.left.textContent = state.view.table.left_out ? `${state.view.table.left_out.toLocaleString("en")} more are in the run's folder: this page holds evenly chosen ${state.view.chosen}.` : "";
    parts.chips.querySelectorAll("button").forEach((chip) => chip.setAttribute("aria-pressed", String(chip.dataset.filter === state.filter)));
    list.fill(state.shown);
    select(state.shown[0] ?? null);
  }

  function select(item) {
    list.mark(item);
    parts.detail.replaceChildren(...(item === null ? [el("p", { class: "note", text: "Nothing matches." })] : state.view.detail(item, state, select)));
    parts.detail.scrollTop = 0;
  }

  function fillChoices({ chips, order, scope }) {
    chips.replaceChildren(...Object.entries(state.view.filters).map(([name, filter]) => {
      const chip = el("button", { type: "button", "data-filter": name, text: filter.name, title: filter.note });
      chip.addEventListener("click", () => { state.filter = name; apply(); });
      return chip;
    }));
    order.replaceChildren(...Object.entries(state.view.orders).map(([name, found]) => el("option", { value: name, text: found.name })));
    scope.replaceChildren(...state.view.scopes.map(([value, text]) => el("option", { value, text })));
  }

  parts.tabs.addEventListener("click", (event) => { if (event.target.dataset.view) open(event.target.dataset.view); });
  parts.order.addEventListener("change", () => { state.order = parts.order.value; apply(); });
  parts.scope.addEventListener("change", () => { state.view.setScope(state, parts.scope.value); apply(); });
  let waiting = 0;
  parts.search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { state.query = parts.search.value; apply(); }, 120);
  });
  if (views.training) {
    api.showStep = (step) => {
      open("training");
      const near = views.training.steps.reduce((best, known) => (Math.abs(known - step) < Math.abs(best - step) ? known : best));
      state.step = near;
      parts.scope.value = String(near);
      apply();
      parts.node.scrollIntoView({ behavior: "smooth", block: "start" });
    };
  }
  open(Object.keys(views)[0]);
  return api;
}

function browserParts(views) {
  const names = { training: "In training", answers: "Held-out, side by side" };
  const tabs = el("div", { class: "tabs", role: "tablist" }, ...Object.keys(views).map((view) => el("button", { type: "button", role: "tab", "data-view": view, text: names[view] })));
  const search = el("input", { type: "search", placeholder: "Search prompts and completions", "aria-label": "Search" });
  const order = el("select", { "aria-label": "Order" }), scope = el("select", { "aria-label": "Which" });
  const chips = el("div", { class: "chips" }), count = el("span", { class: "count", role: "status" }), left = el("span", { class: "note" });
  const list = el("div", { class: "list", tabindex: "0", role: "listbox", "aria-label": "Completions" });
  const detail = el("div", { class: "detail" });
  const node = el("div", { class: "card browser" },
    el("div", { class: "controls" }, tabs, scope, order, search), chips, el("div", { class: "controls" }, count, left),
    el("div", { class: "panes" }, list, detail));
  return { node, tabs, search, order, scope, chips, count, left, list, detail };
}

// Only the rows in view are in the document, so ten thousand cost what twenty cost.
function virtualList(box, { draw, pick }) {
  const space = el("div", { class: "space" });
  box.append(space);
  let items = [], marked = null, frame = 0;
  function paint() {
    frame = 0;
    const first = Math.max(0, Math.floor(box.scrollTop / ROW_HEIGHT) - 4);
    const last = Math.min(items.length, Math.ceil((box.scrollTop + box.clientHeight) / ROW_HEIGHT) + 4);
    space.replaceChildren(...items.slice(first, last).map((item, offset) => {
      const row = draw(item);
      row.style.transform = `translateY(${(first + offset) * ROW_HEIGHT}px)`;
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", String(item === marked));
      row.addEventListener("click", () => pick(item));
      return row;
    }));
  }
  function later() { if (!frame) frame = requestAnimationFrame(paint); }
  box.addEventListener("scroll", later);
  new ResizeObserver(later).observe(box);
  box.addEventListener("keydown", (event) => {
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!move || !items.length) return;
    event.preventDefault();
    const next = Math.min(items.length - 1, Math.max(0, items.indexOf(marked) + move));
    pick(items[next]);
    box.scrollTop = Math.min(next * ROW_HEIGHT, Math.max(box.scrollTop, (next + 1) * ROW_HEIGHT - box.clientHeight));
  });
  return {
    fill(found) { items = found; space.style.height = `${items.length * ROW_HEIGHT}px`; box.scrollTop = 0; paint(); },
    mark(item) { marked = item; paint(); },
  };
}

function lowered(table) {
  const texts = [], prompts = [];
  return {
    text: (at) => (texts[at] ??= table.text[at].toLowerCase()),
    prompt: (at) => (prompts[at] ??= table.prompts[at][1].toLowerCase()),
  };
}

function abstained(table, at) {
  return Object.values(table.rewards).some((values) => values[at] === null);
}

const paid = (table, at) => table.reward[at] ?? -Infinity;

function commonFilters(table, graded) {
  const has = (bit) => (at) => Boolean(table.flags[at] & bit);
  const found = { all: { name: "All", keep: () => true } };
  if (graded) {
    found.right = { name: "Right", keep: has(RIGHT) };
    found.wrong = { name: "Wrong", keep: (at) => !(table.flags[at] & RIGHT) };
    found.format = {
      name: "Right answer, wrong format", note: "The answer is right when tags are ignored; the format is not.",
      keep: (at) => Boolean(table.flags[at] & LENIENT) && !(table.flags[at] & FORMED),
    };
    found.paid = {
      name: "Paid but wrong", note: "A total above zero for an answer that is wrong even when tags are ignored.",
      keep: (at) => !(table.flags[at] & LENIENT) && table.reward[at] > 0,
    };
  }
  found.cut = { name: "Cut off", keep: has(CUT) };
  if (table.flags.some((bits) => bits & UNUSED)) found.unused = { name: "Drawn, not trained on", keep: has(UNUSED) };
  if (table.flags.some((_, at) => abstained(table, at))) found.abstained = { name: "A reward abstained", keep: (at) => abstained(table, at) };
  return found;
}

function trainingView(table, graded) {
  const lower = lowered(table);
  const groups = new Map();  // prompt -> step -> completions
  table.prompt.forEach((prompt, at) => {
    const steps = groups.get(prompt) ?? groups.set(prompt, new Map()).get(prompt);
    const step = table.when[at];
    (steps.get(step) ?? steps.set(step, []).get(step)).push(at);
  });
  const steps = [...new Set(table.when)].sort((one, other) => one - other);
  return {
    table, steps, noun: "completions", chosen: "steps",
    items: table.text.map((_, at) => at),
    filters: commonFilters(table, graded),
    scopes: [["", "every step"], ...steps.map((step) => [String(step), `step ${step}`])],
    setScope(state, value) { state.step = value === "" ? null : Number(value); },
    inScope: (at, state) => state.step === null || table.when[at] === state.step,
    orders: {
      given: { name: "as drawn" },
      longest: { name: "longest first", by: (one, other) => table.tokens[other] - table.tokens[one] },
      best: { name: "highest reward first", by: (one, other) => paid(table, other) - paid(table, one) },
      worst: { name: "lowest reward first", by: (one, other) => paid(table, one) - paid(table, other) },
      often: { name: "prompts seen most often first", by: (one, other) => groups.get(table.prompt[other]).size - groups.get(table.prompt[one]).size || table.prompt[one] - table.prompt[other] },
    },
    matches: (at, query) => lower.text(at).includes(query) || lower.prompt(table.prompt[at]).includes(query),
    row: (at) => listRow(`step ${table.when[at]}`, table.text[at], marks(table, at, graded), formatted(table.reward[at], "number")),
    detail(at, state, select) {
      const prompt = table.prompt[at], step = table.when[at], seen = groups.get(prompt);
      const chips = [...seen.keys()].map((known) => {
        const mean = meanOf(seen.get(known).map((place) => table.reward[place]));
        const chip = el("button", { type: "button", "aria-pressed": String(known === step), text: `step ${known}: ${formatted(mean, "number")}` });
        chip.addEventListener("click", () => select(seen.get(known)[0]));
        return chip;
      });
      const cards = [...seen.get(step)].sort((one, other) => paid(table, other) - paid(table, one)).map((place) => completionCard(table, place, graded, place === at));
      return [promptCard(table.prompts[prompt]), el("div", { class: "chips seen" }, el("span", { class: "note", text: "Its groups, with their mean reward:" }), ...chips), ...cards];
    },
  };
}

function meanOf(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

function answersView(table, graded) {
  const lower = lowered(table);
  const of = table.prompts.map(() => table.groups.map(() => []));
  table.prompt.forEach((prompt, at) => of[prompt][table.when[at]].push(at));
  const all = (row, state) => (state.model === "any" ? of[row].flat() : of[row][Number(state.model)]);
  // The greedy answer where there is one (sample -1), else the first.
  const first = (row, model) => of[row][model].reduce((best, at) => (best === null || table.sample[at] < table.sample[best] ? at : best), null);
  const isRight = (row, model) => { const at = first(row, model); return at !== null && Boolean(table.flags[at] & RIGHT); };
  const filters = {};
  const last = table.groups.length - 1;
  for (const [name, filter] of Object.entries(commonFilters(table, graded))) {
    filters[name] = { ...filter, keep: (row, state) => all(row, state).some((at) => filter.keep(at)) };
  }
  if (graded && last > 0) {
    const before = (state) => (state.model === "any" || Number(state.model) === last ? 0 : Number(state.model));
    filters.gained = { name: "Flips: wrong → right", note: "The first answer of the base model (or of the chosen one) was wrong, the last model's is right.", keep: (row, state) => !isRight(row, before(state)) && isRight(row, last) };
    filters.lost = { name: "Flips: right → wrong", note: "The first answer of the base model (or of the chosen one) was right, the last model's is wrong.", keep: (row, state) => isRight(row, before(state)) && !isRight(row, last) };
  }
  const start = commonStart(table.prompts);
  const shortened = (question) => (start ? `… ${question.slice(start)}` : question);
  const longest = (row) => Math.max(...of[row].flat().map((at) => table.tokens[at]));
  const mean = (row) => meanOf(of[row][last].map((at) => table.reward[at])) ?? -Infinity;
  return {
    table, noun: "problems", chosen: "problems", filters,
    items: table.prompts.map((_, row) => row),
    scopes: [["any", "every model"], ...table.groups.map((name, index) => [String(index), modelName(name)])],
    setScope(state, value) { state.model = value; },
    inScope: (row, state) => all(row, state).length > 0,
    orders: {
      given: { name: "as asked" },
      longest: { name: "longest first", by: (one, other) => longest(other) - longest(one) },
      best: { name: "highest reward first", by: (one, other) => mean(other) - mean(one) },
      worst: { name: "lowest reward first", by: (one, other) => mean(one) - mean(other) },
    },
    matches: (row, query) => lower.prompt(row).includes(query) || of[row].flat().some((at) => lower.text(at).includes(query)),
    row: (row) => listRow(table.prompts[row][0], shortened(table.prompts[row][1]), graded ? table.groups.map((name, model) => mark(isRight(row, model) ? "right" : "wrong", `${modelName(name)}: ${isRight(row, model) ? "right" : "wrong"}`)) : [], ""),
    detail: (row) => [promptCard(table.prompts[row]), el("div", { class: "side" }, ...table.groups.map((name, model) => el("div", { class: "model" }, el("h4", { text: modelName(name) }), ...[...of[row][model]].sort((one, other) => table.sample[one] - table.sample[other]).map((at) => completionCard(table, at, graded, false, table.sample[at] < 0 ? "greedy" : `sample ${table.sample[at] + 1}`)))))],
  };
}

function modelName(name) {
  return { base: "base model", few_shot: "base model, few-shot", warmup: "after warm-up", tuned: "after GRPO" }[name] ?? name.replace(/^step/, "after step ");
}

function mark(kind, title) {
  return el("i", { class: `mark ${kind}`, title, role: "img", "aria-label": title });
}

function marks(table, at, graded) {
  const bits = table.flags[at], found = [];
  if (graded) found.push(mark(bits & RIGHT ? "right" : "wrong", bits & RIGHT ? "right" : "wrong"));
  if (bits & CUT) found.push(mark("cut", "cut off"));
  return found;
}

// What all prompts begin with tells none apart in a list.
function commonStart(prompts) {
  let start = prompts[0][1];
  for (const [, question] of prompts) {
    let length = 0;
    while (length < start.length && start[length] === question[length]) length += 1;
    start = start.slice(0, length);
  }
  const words = start.lastIndexOf(" ") + 1;
  return prompts.length > 1 && words > 12 ? words : 0;
}

function listRow(head, text, found, value) {
  return el("div", { class: "item" }, el("div", { class: "top" }, el("span", { class: "head", text: head }), el("span", { class: "marks" }, ...found), el("span", { class: "pay", text: value })), el("div", { class: "text", text: text.slice(0, 300).replace(TAGS, " ").replace(/\s+/g, " ").trim() || "(empty)" }));
}

function promptCard([id, question, gold, level]) {
  const facts = [id, level === null || level === undefined ? null : `level ${level}`].filter(Boolean).join(", ");
  const node = el("div", { class: "prompt" }, el("p", { class: "note", text: facts }), el("p", { class: `question${question.length > 240 ? " long" : ""}`, text: question }));
  if (gold !== null && gold !== undefined && gold !== "") node.append(el("p", { class: "gold" }, el("span", { text: "right answer " }), el("b", { text: String(gold) })));
  return node;
}

function completionCard(table, at, graded, chosen, title) {
  const bits = table.flags[at];
  const badges = [];
  if (title) badges.push(el("span", { class: "badge", text: title }));
  if (graded) {
    badges.push(el("span", { class: `badge ${bits & RIGHT ? "right" : "wrong"}`, text: bits & RIGHT ? "right" : bits & LENIENT ? "right but for the tags" : "wrong" }));
    if (!(bits & FORMED)) badges.push(el("span", { class: "badge", text: "not in format" }));
  }
  if (bits & CUT) badges.push(el("span", { class: "badge cut", text: "cut off" }));
  if (bits & UNUSED) badges.push(el("span", { class: "badge", text: "not trained on" }));
  const pays = Object.entries(table.rewards).map(([name, values]) => el("span", { class: `reward${values[at] === null ? " none" : ""}`, text: `${name} ${values[at] === null ? "abstained" : formatted(values[at], "number")}` }));
  const total = table.reward[at] === null ? null : el("span", { class: "total", text: formatted(table.reward[at], "number"), title: "total reward" });
  const tokens = table.tokens[at] === null ? null : el("span", { class: "note", text: `${table.tokens[at]} tokens` });
  return el("article", { class: `completion${chosen ? " chosen" : ""}` }, el("div", { class: "chips" }, total, ...badges, tokens), pays.length ? el("div", { class: "rewards" }, ...pays) : null, highlighted(table.text[at]));
}

// The answer blocks marked and the tags made quiet; the text itself goes in as text nodes.
function highlighted(text) {
  const node = el("pre", {});
  let inAnswer = false;
  for (const part of text.split(/(<\/?(?:reasoning|answer|think)>)/)) {
    if (!part) continue;
    if (/^<\/?(?:reasoning|answer|think)>$/.test(part)) {
      inAnswer = part === "<answer>" || (inAnswer && part !== "</answer>");
      node.append(el("span", { class: "tag", text: part }));
    } else if (inAnswer && part.trim()) {
      const [, before, answer, after] = part.match(/^(\s*)([\s\S]*?)(\s*)$/);
      node.append(before, el("mark", { text: answer }), after);
    } else node.append(part);
  }
  return node;
}
