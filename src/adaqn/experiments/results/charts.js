"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const chosen = {task: new Set(), optimizer: new Set()};
const view = {loss: "fit", along: "linear", smoothing: 1, first: false};  // what the reader chose for all charts
const NOT_STORED = {skipped: "#E69F00", rejected: "#D55E00"};

// ---------------------------------------------------------------- small helpers

function make(tag, properties = {}, children = []) {  // text goes in as text, never as markup
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties))
    name in node ? node[name] = value : node.setAttribute(name, value);
  node.append(...children);
  return node;
}
const plain = text => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");  // for plotly
const number = (value, digits = 4) => value === null ? "not finite"
  : value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(2) : value.toFixed(digits);
const shade = colour => {  // lighter on a dark page, where black would vanish
  if (!dark.matches) return colour;
  const [r, g, b] = [1, 3, 5].map(i => parseInt(colour.slice(i, i + 2), 16)), mix = r + g + b ? 0.25 : 0.85;
  return "#" + [r, g, b].map(v => Math.round(v + mix * (255 - v)).toString(16).padStart(2, "0")).join("");
};
const faded = colour => shade(colour) + "2b";
const bytes = count => {
  if (count === null || count === undefined) return "–";
  const power = count ? Math.min(3, Math.floor(Math.log10(count) / 3)) : 0;
  return `${Number((count / 1000 ** power).toPrecision(3))} ${["B", "kB", "MB", "GB"][power]}`;
};
const several = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const unique = values => [...new Set(values)];
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const DASH = {solid: "", dash: "6 4", dot: "2 3", dashdot: "6 3 2 3", longdash: "10 4", longdashdot: "10 3 2 3"};

// ---------------------------------------------------------------- figures: groups of a panel → traces and layout

function layout(x, y, more = {}) {
  const axis = {gridcolor: css("--line"), linecolor: css("--line"), zeroline: false, automargin: true, ticks: "",
    title: {standoff: 8}};
  return {
    height: 290, margin: {l: 48, r: 10, t: 12, b: 42}, showlegend: false, hovermode: "closest",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    font: {family: getComputedStyle(document.body).fontFamily, size: 12, color: css("--soft")},
    hoverlabel: {bgcolor: css("--card"), bordercolor: css("--line"), font: {color: css("--ink")}, namelength: -1},
    ...more,
    xaxis: {...axis, ...more.xaxis, title: {...axis.title, text: x}},
    yaxis: {...axis, ...more.yaxis, title: {...axis.title, text: plain(y)}},
  };
}

function smoothed(values) {  // the window shrinks towards both ends: the first and the last value stay what they are
  return values.map((_, i) => {
    const half = Math.min((view.smoothing - 1) / 2, i, values.length - 1 - i);
    const near = values.slice(i - half, i + half + 1);
    return near.includes(null) ? null : near.reduce((a, b) => a + b) / near.length;
  });
}

function withBand(group, x, values) {
  const line = {
    x, y: smoothed(values.mean), name: plain(group.label), mode: x.length > 1 ? "lines" : "markers", type: "scatter",
    line: {color: shade(group.colour), width: 2, dash: group.dash}, marker: {color: shade(group.colour)},
    hovertemplate: "%{y:.4~g} at %{x:.4~g}",
  };
  if (group.seeds.length < 2) return [line];
  const edge = {x, type: "scatter", mode: "lines", line: {width: 0}, hoverinfo: "skip"};
  return [{...edge, y: smoothed(values.low)}, {...edge, y: smoothed(values.high), fill: "tonexty", fillcolor: faded(group.colour)}, line];
}

const BEGUN = 0.5;  // of the way down: above that a curve only falls, and whatever tells two of them apart lies below
const isLog = panel => view.loss === "log" || (view.loss === "fit" && panel.whole);
const finite = values => values.filter(v => v !== null);

function bounds(groups, all) {  // from the lowest to the highest start: a run that diverges must not flatten the others
  const starts = finite(groups.map(g => g.loss.high[0]));
  if (!all.length || !starts.length) return null;
  const low = all.reduce((a, b) => Math.min(a, b)), most = all.reduce((a, b) => Math.max(a, b));
  const high = Math.min(most, Math.max(...starts));
  return high > low ? {low, high} : null;
}

function begun(groups, {low, high}) {  // where learning has begun, if the second half of every curve lies below that
  const later = finite(groups.flatMap(g => g.loss.high.slice(g.loss.high.length >> 1))).filter(v => v <= high);
  return Math.min(high, later.reduce((a, b) => Math.max(a, b), low + BEGUN * (high - low)));
}

const isCut = (panel, groups) => {
  const found = bounds(groups, finite(groups.flatMap(g => [...g.loss.low, ...g.loss.high])));
  return !view.first && !isLog(panel) && found !== null && begun(groups, found) < found.high;
};

function lossAxis(panel, groups) {
  const found = bounds(groups, finite(groups.flatMap(g => [...g.loss.low, ...g.loss.high])));
  if (isLog(panel)) {
    if (found === null || found.low <= 0) return POWERS;
    const ends = [found.low, found.high].map(Math.log10), room = 0.05 * (ends[1] - ends[0]);
    const few = found.high < 30 * found.low ? {dtick: "D2", exponentformat: "none"} : {};  // 1, 2, 5, 10, ...
    return {...POWERS, ...few, range: [ends[0] - room, ends[1] + room]};
  }
  if (found === null) return {};
  const top = view.first ? found.high : begun(groups, found), room = 0.05 * (top - found.low);
  return {range: [found.low - room, top + room]};
}

const POWERS = {type: "log", exponentformat: "power"};  // losses of whole batches fall by decades
const along = () => view.along === "log" ? {type: "log", dtick: "D2", exponentformat: "none"} : {};

function loss(panel, groups, key, title) {
  const traces = groups.flatMap(g => withBand(g, g[key], g.loss));
  return traces.length && [traces, layout(title, panel.unit, {xaxis: along(), yaxis: lossAxis(panel, groups)})];
}

function error(panel, groups, key, title) {
  const traces = groups.filter(g => g.error).flatMap(g => withBand(g, g[key], g.error));
  const yaxis = view.loss === "linear" ? {} : POWERS;
  return traces.length && [traces, layout(title, "error", {xaxis: along(), yaxis})];
}

function map(panel, key) {  // time runs to the right
  const m = panel.maps;
  if (!m) return 0;
  const evolves = m.axes[1] === "t", values = m[key];
  const z = evolves ? m.x.map((_, j) => values.map(row => row[j])) : values;
  const [across, up] = evolves ? [m.y, m.x] : [m.x, m.y];
  const colours = key === "error" ? {colorscale: "Viridis"} : {colorscale: "RdBu", zmid: 0};
  const trace = {type: "heatmap", x: across, y: up, z, ...colours, colorbar: {thickness: 10, outlinewidth: 0},
    hovertemplate: "%{z:.3~g}<extra></extra>"};
  return [[trace], layout(evolves ? "t" : "x", evolves ? "x" : "y", {margin: {l: 48, r: 50, t: 12, b: 42}})];
}

function memory(panel, groups) {  // a method that never had a pair has no line: it keeps none
  const traces = groups.filter(g => g.memory && g.memory.high.some(pairs => pairs > 0)).flatMap(g => withBand(g, g.epoch.slice(1), g.memory));
  return traces.length && [traces, layout("epoch", "pairs", {xaxis: {rangemode: "tozero"}, yaxis: {rangemode: "tozero"}})];
}

function niceStep(rough) {  // 1, 2 or 5 times a power of ten; plotly would put its ticks under the middle of the bars
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find(m => m * power >= rough * 0.999) * power;
}

const STRIPS = 6;
const sum = values => values.reduce((a, b) => a + (b || 0), 0);
const VERDICTS = ["kept", "stored", "skipped", "rejected"];
const cycles = g => VERDICTS.reduce((all, name) => all + sum(g.verdicts[name]), 0);
const hasPairs = g => g.verdicts && sum(g.verdicts.stored) + sum(g.verdicts.skipped) > 0;
const notStored = g => sum(g.verdicts.skipped) + sum(g.verdicts.rejected);

function verdicts(panel, groups) {  // one strip for each group with cycles that were skipped or rejected, one bar for each interval
  if (!groups.some(g => g.verdicts)) return 0;
  const shown = groups.filter(g => g.verdicts && notStored(g)).slice(0, STRIPS), count = shown.length;
  if (!count) return [];
  const traces = [], more = {annotations: [], barmode: "stack", bargap: 0.15, height: Math.max(220, 60 + 110 * count)};
  shown.forEach((g, i) => {
    const axis = i ? `y${i + 1}` : "y", top = 1 - i / count, bottom = 1 - (i + 1) / count;
    const x = g.epoch.slice(1).map((end, j) => (end + g.epoch[j]) / 2);
    const width = g.epoch.slice(1).map((end, j) => 0.86 * (end - g.epoch[j]));
    const all = x.map((_, j) => VERDICTS.reduce((total, name) => total + g.verdicts[name][j], 0));
    for (const [name, colour] of Object.entries(NOT_STORED))
      traces.push({type: "bar", x, y: g.verdicts[name].map((v, j) => all[j] ? v / all[j] : 0), width, yaxis: axis, name,
        marker: {color: colour}, customdata: g.verdicts[name],
        hovertemplate: `%{customdata:.4~g} ${name}, %{y:.1%}<extra>${plain(g.label)}</extra>`});
    more[i ? `yaxis${i + 1}` : "yaxis"] = {domain: [bottom + 0.02, Math.max(top - 24 / (more.height - 54), bottom + 0.1)],
      gridcolor: css("--line"), rangemode: "tozero", tickformat: ".0%", nticks: 4, zeroline: false, automargin: true};
    more.annotations.push({text: plain(g.label), x: 0, y: top, xref: "paper", yref: "paper", xanchor: "left",
      yanchor: "top", showarrow: false, font: {size: 11.5}});
  });
  const end = Math.max(...shown.map(g => g.epoch.at(-1)));
  more.xaxis = {anchor: count > 1 ? `y${count}` : "y", range: [0, end], dtick: niceStep(end / 4)};
  return [traces, layout("epoch", "", more)];
}

function totals(panel, groups) {  // the same in words: with nothing to draw, it is all there is to know
  const judged = groups.filter(g => g.verdicts), strips = judged.filter(notStored).length;
  const lines = judged.map(g => {
    const all = cycles(g), share = name => `${Number(sum(g.verdicts[name]).toPrecision(4))} ${name}`;
    const names = hasPairs(g) ? VERDICTS.slice(1) : ["kept", "rejected"];
    const what = notStored(g) ? names.map(share).join(", ") : hasPairs(g) ? "every one stored a pair" : "every one kept";
    return `${g.label}: ${several(Number(all.toPrecision(4)), "cycle")}, ${what}`;
  });
  if (strips > STRIPS) lines.push(`Drawn: the ${STRIPS} of them with the lowest test loss.`);
  return lines.join("\n");
}

function sensitivity(panel, groups) {
  const traces = [];
  for (const family of unique(groups.map(g => g.family))) {
    const members = groups.filter(g => g.family === family && g.lr !== null).sort((a, b) => a.lr - b.lr);
    if (unique(members.map(g => g.lr)).length < 2) continue;
    const colour = shade(members[0].colour), mean = members.map(g => g.valid.mean);
    const used = traces.filter(t => t.line.color === colour).length;
    traces.push({
      type: "scatter", mode: "lines+markers", x: members.map(g => g.lr), y: mean, name: plain(family),
      line: {color: colour, width: 2, dash: Object.keys(DASH)[used % 6]}, marker: {color: colour, size: 7},
      error_y: {type: "data", symmetric: false, thickness: 1, width: 3, color: colour,
        array: members.map(g => g.valid.high - g.valid.mean), arrayminus: members.map(g => g.valid.mean - g.valid.low)},
      hovertemplate: "%{y:.4f} with lr %{x:~g}",
    });
  }
  const rates = unique(traces.flatMap(t => t.x)).sort((a, b) => a - b);
  const few = rates.length <= 8;  // more would run into each other
  const xaxis = {type: "log", ...(few ? {tickvals: rates, ticktext: rates.map(String)} : {dtick: "D2", exponentformat: "none"})};
  const found = bounds(groups, finite(groups.flatMap(g => [g.valid.low, g.valid.high])));
  const room = found ? 0.05 * (found.high - found.low) : 0;
  const yaxis = isLog(panel) ? POWERS : found ? {range: [found.low - room, found.high + room]} : {};
  return traces.length && [traces, layout("step size lr", panel.unit, {xaxis, yaxis})];
}

function diverged(panel, groups) {
  const lost = groups.filter(g => g.valid.mean === null).map(g => g.label);
  return lost.length ? `Ended with a loss that is not finite, so without a point: ${lost.join("; ")}.` : "";
}

const above = (panel, groups) =>
  isCut(panel, groups) ? "The first steps are above the picture: tick “from the first step” to see them." : "";

const CHARTS = [  // title, what it is about, the figure, a remark; the first two may depend on the panel
  [p => p.whole ? "Loss by evaluations" : "Test loss by epoch", "Mean over seeds; the band reaches from the lowest to the highest.",
    (p, g) => loss(p, g, "epoch", p.whole ? "evaluations" : "epoch"), above],
  [p => p.whole ? "Loss by wall-clock time" : "Test loss by wall-clock time", "Seconds of training alone, without evaluation.",
    (p, g) => loss(p, g, "clock", "seconds"), above],
  ["Error by evaluations", "Where the model was not trained; of the weights with the lowest loss so far.",
    (p, g) => error(p, g, "epoch", "evaluations")],
  ["Error by wall-clock time", "Seconds of training alone, without measuring.", (p, g) => error(p, g, "clock", "seconds")],
  ["Solution", "", p => map(p, "exact")],
  ["Network with the smallest error", p => p.maps ? `${p.maps.name}, relative error ${number(p.maps.relative)}.` : "",
    p => map(p, "found")],
  ["Absolute error of that network", "", p => map(p, "error")],
  ["Step-size sensitivity", "Validation loss at the end of training, against the step size.", sensitivity, diverged],
  ["L-BFGS memory", "Curvature pairs in memory, averaged between two evaluations.", memory],
  ["Verdicts", "", verdicts, totals],
];
