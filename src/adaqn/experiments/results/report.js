// ---------------------------------------------------------------- sections

function key(panel, groups) {
  return groups.map(g => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    for (const [n, v] of Object.entries({width: 30, height: 8, "aria-hidden": "true"})) svg.setAttribute(n, v);
    for (const [n, v] of Object.entries({x1: 0, x2: 30, y1: 4, y2: 4, "stroke-width": 2.5, stroke: shade(g.colour),
      "stroke-dasharray": DASH[g.dash]})) line.setAttribute(n, v);
    svg.append(line);
    return make("li", {}, [svg, make("span", {textContent: g.label}), make("b", {textContent: number(g.test.mean)})]);
  });
}

function makePanel(panel) {
  const name = [panel.task, panel.data, panel.model].join(" · ");
  panel.key = make("ul", {className: "key", "aria-label": "Optimizers and their final test loss"});
  const said = text => typeof text === "function" ? text(panel) : text;
  panel.cards = CHARTS.map(([titled, told, figure, remark]) => {
    const title = said(titled), about = said(told);
    const plot = make("div", {className: "plot", role: "img", "aria-label": `${title}, ${name}`});
    const note = make("p", {className: "soft", textContent: about});
    if (figure === verdicts) {
      const paired = panel.groups.some(hasPairs), shown = Object.entries(NOT_STORED).slice(paired ? 0 : 1);
      note.append(`Cycles that were rejected${paired ? ", or stored no pair" : ""}, as a share of those between two evaluations: `);
      for (const [verdict, colour] of shown)
        note.append(make("span", {className: "together"}, [
          make("span", {className: "dot", style: `display: inline-block; background: ${colour}`}), ` ${verdict}`]), "  ");
    }
    const more = make("p", {className: "soft more"});
    return {figure, remark, plot, more, node: make("div", {className: "card"}, [
      make("h3", {textContent: title}), note, plot, more])};
  });
  panel.node = make("section", {className: "panel", "aria-label": name}, [
    make("h2", {textContent: name}),
    make("p", {className: "soft", textContent: `Loss in ${panel.unit}; beside each name the final ${panel.whole ? "" : "test "}loss, best first.`}),
    panel.key, make("div", {className: "charts"}, panel.cards.map(c => c.node)),
  ]);
  return panel.node;
}

const pair = {a: null, b: null, only: false};
const visible = (panel, group) => chosen.task.has(panel.task) && chosen.optimizer.has(group.optimizer)
  && (!pair.only || group === pair.a || group === pair.b);

function draw() {
  let any = false;
  for (const panel of data.panels) {
    const groups = panel.groups.filter(g => visible(panel, g));
    panel.node.hidden = !groups.length;
    for (const g of panel.groups) g.row.hidden = !groups.includes(g);
    if (!groups.length) continue;
    any = true;
    panel.key.replaceChildren(...key(panel, groups));
    for (const card of panel.cards) {
      card.drawing = card.figure(panel, groups);
      card.node.hidden = !card.drawing;
      card.more.textContent = card.drawing && card.remark ? card.remark(panel, groups) : "";
      card.plot.hidden = !(card.drawing && card.drawing.length);  // some have nothing to draw, and say so
    }
    const shown = panel.cards.filter(card => card.drawing);
    shown.forEach((card, i) => {  // an odd one at the end takes the whole row
      card.node.classList.toggle("row", shown.length % 2 === 1 && i === shown.length - 1);
      if (card.drawing.length) Plotly.react(card.plot, ...card.drawing, {displayModeBar: false, responsive: true});
    });
  }
  document.getElementById("nothing").hidden = any || !data.panels.length;
  document.getElementById("results").hidden = !any;
}

const rowsOfTable = data.panels.flatMap(p => p.groups.map(g => [p, g]));
const averaged = g => g.averaged ? number(g.averaged.mean) : "–";
const anyAverage = rowsOfTable.some(([, g]) => g.averaged);
const COLUMNS = [  // title, the text shown, what is sorted by, class
  ["task", (p, g) => p.task],
  ["data", (p, g) => p.data, null, "wide"],
  ["model", (p, g) => p.model],
  ["optimizer", (p, g) => g.details ? `${g.name}, ${g.details}` : g.name, null, "wide"],
  ["lr", (p, g) => g.lr === null ? "–" : String(g.lr), (p, g) => g.lr],
  ["seeds", (p, g) => g.seeds.join(", "), (p, g) => g.seeds.length],
  ["test loss", (p, g) => number(g.test.mean), (p, g) => g.test.mean],
  ...anyAverage ? [["at the average", (p, g) => averaged(g), (p, g) => g.averaged && g.averaged.mean]] : [],
  ["spread", (p, g) => g.seeds.length > 1 && g.test.mean !== null ? number(g.test.high - g.test.low) : "–",
    (p, g) => g.seeds.length > 1 && g.test.mean !== null ? g.test.high - g.test.low : null],
  ["best valid", (p, g) => number(g.best_valid.mean), (p, g) => g.best_valid.mean],
  ["seconds", (p, g) => number(g.seconds.mean, 1), (p, g) => g.seconds.mean],
  ["steps", (p, g) => String(g.steps), (p, g) => g.steps],
  ["memory", (p, g) => bytes(g.optimizer_bytes), (p, g) => g.optimizer_bytes],
  ["data sha256", (p, g) => g.sha256],
];

const NAMES_OF_THE_TASK = ["task", "data", "model", "data sha256"];
const columns = COLUMNS.filter(([title, text]) =>  // what is the same in every row is in the heading of the charts already
  !NAMES_OF_THE_TASK.includes(title) || unique(rowsOfTable.map(([p, g]) => text(p, g))).length > 1);

const words = text =>  // a line may break between words, and within one only if it must
  text.split(" ").flatMap((word, i) => [i ? " " : "", make("span", {textContent: word})]);

function makeRow(panel, group) {
  const cells = columns.map(([title, text, by, kind]) =>
    make("td", {className: by ? "number" : kind || "", role: "cell", "data-name": title, textContent: text(panel, group)}));
  const copy = make("button", {type: "button", textContent: "Copy", "aria-label": `Copy the command for ${group.label}`});
  copy.onclick = async () => {
    try {
      await navigator.clipboard.writeText(group.command);
      copy.textContent = "Copied";
    } catch {  // a browser may refuse: select it, so that a key press copies it
      getSelection().selectAllChildren(copy.previousSibling);
      copy.textContent = "Selected";
    }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  };
  const repeat = make("td", {className: "repeat", role: "cell", colSpan: columns.length}, [
    make("div", {}, [make("code", {}, words(group.command)), copy])]);
  group.row = make("tbody", {role: "rowgroup"}, [make("tr", {role: "row"}, cells), make("tr", {role: "row"}, [repeat])]);
  return group.row;
}

function makeTable() {
  const table = document.getElementById("table"), head = table.tHead.rows[0];
  columns.forEach(([title, text, by]) => {
    const button = make("button", {type: "button", textContent: title});
    const th = make("th", {scope: "col", role: "columnheader", className: by ? "number" : "", "aria-sort": "none"}, [button]);
    button.onclick = () => {
      const down = th.getAttribute("aria-sort") === "ascending", value = by || text;
      for (const other of head.cells) other.setAttribute("aria-sort", "none");
      th.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sorted = [...rowsOfTable].sort(([p, g], [q, h]) => {
        const a = value(p, g), b = value(q, h);
        if (a === null || b === null) return (a === null) - (b === null);  // what has no value stays last
        return (down ? -1 : 1) * (typeof a === "number" ? a - b : a.localeCompare(b));
      });
      table.append(...sorted.map(([, g]) => g.row));
    };
    head.append(th);
  });
  table.append(...rowsOfTable.map(([p, g]) => makeRow(p, g)));
}

function makeFilter(id, kind, values) {  // value → [text, colour]
  const fieldset = document.getElementById(id);
  for (const [value, [text, colour]] of values) {
    chosen[kind].add(value);
    const box = make("input", {type: "checkbox", checked: true, value, name: kind});
    box.onchange = () => { box.checked ? chosen[kind].add(value) : chosen[kind].delete(value); draw(); };
    const dot = colour ? [make("i", {className: "dot", style: `background: ${shade(colour)}`})] : [];
    fieldset.append(make("label", {className: "chip"}, [box, ...dot, make("span", {textContent: text})]));
  }
}

// ---------------------------------------------------------------- two runs side by side

const RESULTS = [  // title, the text; of the two that are compared
  ["final test loss", g => number(g.test.mean)],
  ...anyAverage ? [["the same at the average of the weights", averaged]] : [],
  ["best validation loss", g => number(g.best_valid.mean)],
  ["seconds of training", g => number(g.seconds.mean, 1)],
  ["steps", g => String(g.steps)],
  ["memory of the optimizer", g => g.parameter_bytes && Number.isFinite(g.optimizer_bytes)
    ? `${bytes(g.optimizer_bytes)}, ${Number((g.optimizer_bytes / g.parameter_bytes).toPrecision(2))} × the weights` : "–"],
];

function drawPair() {
  const {a, b} = pair, [, ...names] = document.querySelectorAll("#sides thead th");
  const body = document.querySelector("#sides tbody"), settings = unique([...Object.keys(a.settings), ...Object.keys(b.settings)]);
  const value = (g, name) => g.settings[name] ?? "not set";
  const differ = settings.filter(name => value(a, name) !== value(b, name));
  const row = (title, one, other) => make("tr", {}, [title, one, other].map((text, i) => i
    ? make("td", {textContent: text}) : make("th", {scope: "row", textContent: text})));
  names.forEach((th, i) => { th.textContent = [a, b][i].label; });
  body.replaceChildren(...RESULTS.map(([title, text]) => row(title, text(a), text(b))),
    ...differ.map(name => row(name, value(a, name), value(b, name))));
  document.getElementById("same").textContent = a === b ? "These are the same runs."
    : `${several(settings.length - differ.length, "other setting")} equal in both.`;
}

function makePair() {
  const all = rowsOfTable;
  if (all.length < 2) return;
  const best = data.panels.find(p => p.groups.length > 1) || data.panels[0];
  pair.a = best.groups[0];
  const others = all.map(([, g]) => g).filter(g => g !== pair.a), near = best.groups.filter(g => g !== pair.a);
  pair.b = near.find(g => g.optimizer === "adam") || near.find(g => g.optimizer !== pair.a.optimizer) || near[0] || others[0];
  for (const side of ["a", "b"]) {
    const select = document.querySelector(`#pair select[name=${side}]`);
    select.append(...all.map(([p, g], i) => make("option", {value: i, selected: g === pair[side],
      textContent: data.panels.length > 1 ? `${g.label}, ${[p.task, p.data, p.model].join(" · ")}` : g.label})));
    select.onchange = () => { pair[side] = all[select.value][1]; drawPair(); if (pair.only) draw(); };
  }
  document.querySelector("#pair input[name=only]").onchange = event => { pair.only = event.target.checked; draw(); };
  document.getElementById("pair").hidden = false;
  drawPair();
}

function makeView() {
  for (const control of document.querySelectorAll("#view [name]"))
    control.onchange = () => {
      view[control.name] = control.type === "checkbox" ? control.checked
        : control.name === "smoothing" ? Number(control.value) : control.value;
      draw();
    };
}

// ---------------------------------------------------------------- the page

const groups = data.panels.flatMap(p => p.groups);
document.getElementById("title").textContent = data.root;
const told = data.panels.filter(p => p.headline);
document.getElementById("headlines").append(...told.map(p => make("li", {}, [
  ...(data.panels.length > 1 ? [make("b", {textContent: [p.task, p.data, p.model].join(" · ")}), ": "] : []), p.headline])));
document.getElementById("headlines").hidden = !told.length;
document.getElementById("about").textContent = [
  `${several(data.runs, "finished run")} of ${several(groups.length, "setting")}`,
  data.copies ? `${several(data.copies, "copy").replace("copys", "copies")} of the same run left out` : "",
  data.unfinished.length ? `${data.unfinished.length} not finished or not readable` : "",
  `written ${data.written} by adaqn ${data.version}`,
].filter(Boolean).join(" · ");
makeFilter("tasks", "task", new Map(data.panels.map(p => [p.task, [p.task]])));
makeFilter("optimizers", "optimizer", new Map(groups.map(g => [g.optimizer, [g.name, g.colour]])));
document.querySelector(".filters").hidden = !groups.length;
makeTable();
makePair();
makeView();
document.getElementById("panels").append(...data.panels.map(makePanel));
for (const run of data.unfinished) {
  document.querySelector("#others ul").append(make("li", {}, [
    make("code", {textContent: run.folder}), make("span", {className: "soft", textContent: ` ${run.state}`})]));
}
document.getElementById("others").hidden = !data.unfinished.length;
draw();
dark.addEventListener("change", draw);
