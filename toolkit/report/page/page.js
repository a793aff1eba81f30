// Puts the page together. Every text of the data reaches the page as text content, never as markup.

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function section(id, title, ...children) {
  return el("section", { id }, el("h2", { text: title }), ...children);
}

function buildPage(data) {
  document.title = data.title;
  const page = document.getElementById("page");
  const browser = data.training || data.answers ? completionBrowser(data) : null;
  const onStep = browser && data.training ? browser.showStep : null;
  const sections = [
    masthead(data),
    data.runs ? comparisonSection(data) : resultSection(data),
    data.figures.length ? curvesSection(data, onStep) : null,
    browser ? section("completions", "Completions", browser.node) : null,
    recipeSection(data),
    el("footer", { text: "Made by grpo-toolkit. This file reaches nothing outside of itself. Plots: uPlot (MIT)." }),
  ].filter(Boolean);
  page.append(navigation(sections), ...sections);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
}

function navigation(sections) {
  const bar = el("nav", { "aria-label": "Sections" });
  for (const part of sections.filter((item) => item.id)) {
    bar.append(el("a", { href: `#${part.id}`, text: part.querySelector("h2").textContent }));
  }
  return bar;
}

function masthead(data) {
  const head = data.head;
  const title = el("div", { class: "title" }, el("h1", { text: head.title }));
  if (head.state) title.append(el("span", { class: `pill ${head.state}`, text: head.state }));
  const node = el("header", {}, title);
  if (head.description) node.append(el("p", { class: "description", text: head.description }));
  if (head.run && head.run !== head.title) node.append(el("p", { class: "run", text: head.run }));
  return node;
}

function resultSection(data) {
  const grid = el("div", { class: "columns" });
  if (data.stages) grid.append(stagesCard(data.stages));
  grid.append(factsCard(data));
  const node = section("result", "Result", verdictCard(data.verdict), grid);
  if (data.findings.length) node.append(findingsCard(data.findings));
  if (data.certificate) node.append(certificateCard(data.certificate));
  return node;
}

function verdictCard(verdict) {
  const [first, ...rest] = verdict.sentences;
  return el("div", { class: `card verdict ${verdict.tone}` }, el("p", { class: "first", text: first }), ...rest.map((text) => el("p", { text })));
}

// A line a model: the bar is the sampled answers, the whisker its interval, the ring the greedy answers.
function stagesCard(stages) {
  const card = el("div", { class: "card stages" });
  card.append(el("h3", { text: stages.graded ? "Right answers" : "Mean reward" }));
  const scale = stageScale(stages);
  const table = el("div", { class: "bars" });
  for (const model of stages.models) table.append(stageRow(model, stages, scale));
  const asked = `${stages.n} ${stages.graded ? "problems" : "prompts"} not in the training, ${stages.samples} sampled answers each`;
  card.append(table, el("p", { class: "note", text: `${asked}. Bar: sampled, with its 95 % interval; ring: the greedy answer.` }));
  card.append(stageTable(stages));
  for (const other of stages.others) {
    card.append(el("h3", { text: `On ${other.name} (${other.n})` }), stageTable({ ...stages, models: other.models }));
  }
  return card;
}

function stageScale(stages) {
  if (stages.graded) return (value) => 100 * value;
  const all = stages.models.flatMap((model) => [model.value, model.greedy, ...(model.interval || []), 0]).filter((value) => value !== null && value !== undefined);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  return (value) => (100 * (value - low)) / (high - low || 1);
}

function stageRow(model, stages, scale) {
  const track = el("div", { class: "track" });
  if (model.value !== null && model.value !== undefined) {
    const zero = scale(0), at = scale(model.value);
    const bar = el("div", { class: `bar ${model.key}` });
    bar.style.left = `${Math.min(zero, at)}%`;
    bar.style.width = `${Math.abs(at - zero)}%`;
    track.append(bar);
    if (model.interval) {
      const whisker = el("div", { class: "whisker" });
      whisker.style.left = `${scale(model.interval[0])}%`;
      whisker.style.width = `${scale(model.interval[1]) - scale(model.interval[0])}%`;
      track.append(whisker);
    }
  }
  if (model.greedy !== null && model.greedy !== undefined) {
    const ring = el("div", { class: "ring", title: `greedy: ${formatted(model.greedy, stages.unit)}` });
    ring.style.left = `${scale(model.greedy)}%`;
    track.append(ring);
  }
  return el("div", { class: "row" }, el("span", { class: "name", text: model.name }), track, el("span", { class: "value", text: percent(model.value, stages.unit) }));
}

// Halves to even, as Python does: the verdict's sentence and the table must not differ in a digit.
function percent(value, unit) {
  if (unit !== "share" || value === null || value === undefined) return formatted(value, unit);
  const tenths = 1000 * value, up = Math.round(tenths);
  return `${((tenths % 1 === 0.5 && up % 2 ? up - 1 : up) / 10).toFixed(1)} %`;
}

// A cell of a table: the value, and under it its interval.
function withInterval(value, interval, unit) {
  const cell = el("span", { text: percent(value, unit) });
  if (interval) cell.append(el("small", { text: `${percent(interval[0], unit)} to ${percent(interval[1], unit)}` }));
  return cell;
}

function stageTable(stages) {
  const heads = stages.graded
    ? ["", "sampled", "greedy", "tags ignored", "in format", "tokens", "cut off"]
    : ["", "sampled", "greedy", "tokens", "cut off"];
  const rows = stages.models.map((model) => [
    model.name,
    withInterval(model.value, model.interval, stages.unit),
    withInterval(model.greedy, model.greedy_interval, stages.unit),
    ...(stages.graded ? [percent(model.lenient, "share"), percent(model.format, "share")] : []),
    formatted(model.tokens, "number"),
    percent(model.truncated, "share"),
  ]);
  return table(heads, rows);
}

function table(heads, rows) {
  const head = el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { text }))));
  const body = el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell) => el("td", {}, cell ?? "–")))));
  return el("div", { class: "scroll" }, el("table", {}, head, body));
}

function factsCard(data) {
  const list = el("dl", {});
  for (const [name, value, detail] of [...data.head.facts, ...data.cost]) {
    list.append(el("dt", { text: name }), el("dd", { text: value }, detail ? el("small", { text: detail }) : null));
  }
  return el("div", { class: "card facts" }, el("h3", { text: "What was trained on what, and what it took" }), list);
}

function findingsCard(findings) {
  const card = el("div", { class: "card findings" }, el("h3", { text: "What the doctor found" }));
  const words = { error: "error", warning: "warning", note: "normal" };
  for (const finding of findings) {
    const title = el("div", { class: "title" }, el("b", { text: finding.title }), el("span", { class: `badge ${finding.level}`, text: words[finding.level] }));
    const item = el("div", { class: `finding level-${finding.level}` }, title);
    if (finding.text) item.append(el("p", { text: finding.text }));
    if (finding.advice) item.append(el("p", { class: "advice", text: finding.advice }));
    if (finding.more) item.append(el("p", { class: "note", text: finding.more }));
    card.append(item);
  }
  return card;
}

function certificateCard(certificate) {
  const words = { true: "verified", false: "NOT verified", null: "not verified yet" };
  const card = el("div", { class: "card certificate" });
  card.append(el("h3", { text: `Export: ${words[certificate.passed]}` }), el("p", { class: "run", text: certificate.export }));
  const rows = certificate.files.map((file) => [
    file.file,
    `${file.megabytes.toFixed(0)} MB`,
    file.kl === null || file.kl === undefined ? "–" : Number(file.kl).toExponential(1),
    file.top1 === null || file.top1 === undefined ? "–" : Number(file.top1).toFixed(3),
    file.passed ? "passed" : `failed: ${file.failed.join(", ")}`,
  ]);
  if (rows.length) card.append(table(["file", "size", "mean KL", "same top token", "verdict"], rows));
  return card;
}

function curvesSection(data, onStep) {
  const main = el("div", { class: "charts" }), small = el("div", { class: "charts tight" }), minor = el("div", { class: "charts" });
  for (const figure of data.figures) {
    (figure.minor ? minor : figure.small ? small : main).append(chartCard(figure, onStep));
  }
  const hint = onStep
    ? "Move over a curve to read all of them at that step; drag to zoom, double-click to see all again; click to read that step's completions."
    : "Move over a curve to read all of them at that step; drag to zoom, double-click to see all again.";
  const node = section("curves", "Curves", el("p", { class: "note", text: hint }), main);
  if (small.childElementCount) node.append(el("h3", { text: "Each reward" }), small);
  if (minor.childElementCount) node.append(el("details", {}, el("summary", { text: "More: learning rate, loss, clipping, speed" }), minor));
  return node;
}

function recipeSection(data) {
  const heads = data.runs ? ["key", ...data.runs.map((run) => run.name)] : ["key", "value"];
  const details = el("details", { open: Boolean(data.runs) }, el("summary", { text: data.runs ? "Keys that differ" : "Every key" }), table(heads, data.recipe));
  return section("recipe", "Recipe", data.recipe.length ? details : el("p", { text: "The recipes do not differ." }));
}

function comparisonSection(data) {
  const heads = ["run", "recipe", "state", "steps", "reward", data.graded ? "right, sampled" : "mean reward", "time"];
  const rows = data.runs.map((run) => [run.name, run.recipe, run.state, run.steps, formatted(run.reward, "number"), withInterval(run.value, run.interval, data.unit), run.time]);
  const node = section("result", "Result", ...data.sentences.map((text) => el("div", { class: "card verdict open" }, el("p", { class: "first", text }))));
  node.append(el("div", { class: "card" }, table(heads, rows)));
  if (data.pairs.length) {
    const pairs = data.pairs.map((pair) => [pair.name, pair.change, pair.interval, pair.p, pair.n]);
    node.append(el("div", { class: "card" }, el("h3", { text: "Paired by problem" }), table(["", "difference", "95 % interval", "McNemar's exact p (greedy)", "problems"], pairs)));
  }
  for (const text of data.notes) node.append(el("p", { class: "note", text }));
  return node;
}

buildPage(JSON.parse(document.getElementById("data").textContent));
