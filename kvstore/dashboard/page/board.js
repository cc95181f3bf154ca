// The page asks for charts every other second and draws what it is told. It decides nothing: every
// figure on it is one that /board/charts or /board/requests gave, written for people.
"use strict";

const COLOURS = ["#1f77d0", "#e8710a", "#2b9348", "#9c36b5", "#c2255c", "#0b7285", "#b08800",
                 "#7048e8", "#5c940d", "#868e96"];

const WRITE = {
  // Only all is 100 %, and only nothing 0 %.
  "share": v => v < 1 - 1e-9 && v >= .9995 ? ">99.9 %" : v > 0 && v < .0005 ? "<0.1 %"
                : (100 * v).toFixed(1) + " %",
  "seconds": v => seconds(v),
  "bytes": v => bytes(v),
  "bytes/s": v => bytes(v) + "/s",
  "1/s": v => number(v) + "/s",
  "count": v => number(v),
};
const FIGURES = [
  ["hit_rate", "found", "of prompt tokens found"],
  ["hit_rate", "expected", "expected to be found"],
  ["ttft", "p50", "to first token, half of all"],
  ["ttft", "p99", "to first token, all but 1 %"],
  ["tpot", "token p50", "per output token, half of all"],
  ["requests", "whole", "requests answered"],
];
const plots = new Map();
let shown = "";

function seconds(v) {
  if (v < 0) return "-" + seconds(-v);  // as where a certificate is over
  for (const [size, name] of [[86400, "days"], [3600, "h"]])
    if (v >= 2 * size)
      return (v / size).toLocaleString("en", {minimumFractionDigits: 1, maximumFractionDigits: 1})
             + " " + name;
  if (v === 0) return "0 s";
  return v >= 10 ? v.toFixed(1) + " s" : v >= 1 ? v.toFixed(2) + " s"
         : v >= .001 ? (1e3 * v).toFixed(v >= .1 ? 0 : 1) + " ms" : (1e6 * v).toFixed(0) + " µs";
}

function bytes(v) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let i = 0;
  while (v >= 1024 && i < units.length - 1) { v /= 1024; i += 1; }
  return (v >= 100 || i === 0 ? v.toFixed(0) : v.toFixed(1)) + " " + units[i];
}

function number(v) {
  return v >= 100 ? Math.round(v).toLocaleString("en") : v >= 10 ? v.toFixed(1) : v.toFixed(2);
}

function made(tag, text, name) {
  const one = document.createElement(tag);
  if (text !== undefined) one.textContent = text;
  if (name) one.className = name;
  return one;
}

function last(chart, name) {
  const line = chart && chart.lines.find(one => one.name === name);
  const value = line && line.values[line.values.length - 1];
  return value === undefined ? null : value;
}

function figures(charts) {
  const into = document.getElementById("figures");
  const by = new Map(charts.map(one => [one.key, one]));
  into.replaceChildren(...FIGURES.map(([key, name, text]) => {
    const box = made("div"), value = last(by.get(key), name);
    const told = made("b", value === null ? "–" : WRITE[by.get(key).unit](value));
    told.dataset.chart = key;
    told.dataset.line = name;
    if (value !== null) told.dataset.value = value;
    box.append(told, made("span", text));
    return box;
  }));
}

function article(chart) {
  const found = made("article");
  found.dataset.chart = chart.key;
  const title = made("h2", chart.title);
  title.id = "chart-" + chart.key;
  found.setAttribute("aria-labelledby", title.id);
  found.append(title, made("p", chart.asks, "asks"));
  const none = made("p", "nothing yet", "none"), plot = made("div", undefined, "plot");
  plot.setAttribute("role", "img");
  const more = made("details"), table = made("table");
  const open = made("summary", "in figures");
  open.setAttribute("aria-label", chart.title + ": in figures");
  table.setAttribute("aria-labelledby", title.id);
  more.append(open, table);
  found.append(none, plot, more);
  document.getElementById("charts").append(found);
  return {none, plot, more, table};
}

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function draw(chart, times) {
  const {none, plot, more, table} = plots.get(chart.key), write = WRITE[chart.unit];
  none.hidden = chart.lines.length > 0;
  plot.hidden = more.hidden = !none.hidden;
  if (plot.hidden) return;
  const said = chart.lines.map(line => [line.name, last(chart, line.name)]);
  plot.setAttribute("aria-label", chart.title + ": " + (said.map(([name, value]) =>
    name + " " + (value === null ? "nothing" : write(value))).join(", ") || "nothing yet"));
  table.replaceChildren(...said.map(([name, value]) => {
    const row = made("tr"), cell = made("td", value === null ? "–" : write(value), "number");
    const head = made("th", name);
    head.scope = "row";
    if (value !== null) cell.dataset.value = value;
    row.append(head, cell);
    row.dataset.line = name;
    return row;
  }));
  const x = times.map(one => new Date(1e3 * one));
  const lines = chart.lines.map((line, i) => ({
    x, y: line.values, name: line.name, type: "scatter", mode: "lines",
    line: {color: COLOURS[i % COLOURS.length], width: 2},
    stackgroup: chart.stacked ? "one" : undefined,
    text: line.values.map(v => v === null ? "" : write(v)),
    hovertemplate: "%{text}",
  }));
  const soft = style("--soft"), rule = style("--rule");
  const layout = {
    margin: {l: 58, r: 8, t: 4, b: 26}, height: 230, showlegend: true, hovermode: "x unified",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: soft, size: 11},
    hoverlabel: {bgcolor: style("--card"), font: {color: style("--ink")}},
    legend: {orientation: "h", y: 1.02, yanchor: "bottom", x: 0},
    xaxis: {gridcolor: rule, type: "date"},
    yaxis: {gridcolor: rule, rangemode: "tozero", tickformat: chart.unit === "share" ? ".0%" : "~s",
            ticksuffix: chart.unit === "seconds" ? "s" : chart.unit.startsWith("bytes") ? "B" : ""},
  };
  Plotly.react(plot, lines, layout, {displayModeBar: false, responsive: true});
  // What it measures texts with is no picture for anybody.
  document.getElementById("js-plotly-tester")?.setAttribute("aria-hidden", "true");
}

function rows(id, heads, lines) {
  const table = document.getElementById(id), head = made("tr");
  head.append(...heads.map(([text, kind]) => {
    const one = made("th", text, kind);
    one.scope = "col";
    return one;
  }));
  table.tHead.replaceChildren(head);
  table.tBodies[0].replaceChildren(...lines.map(cells => {
    const row = made("tr");
    row.append(...cells.map((told, i) => {
      const cell = made("td", undefined, heads[i][1]);
      cell.append(told);  // text, or an element
      return cell;
    }));
    return row;
  }));
}

async function why(id) {
  const sentence = document.getElementById("why-sentence");
  rows("why-engines", [], []);
  sentence.textContent = "asking the conductor…";
  document.getElementById("why").showModal();
  try {
    const told = await asked("/board/requests/" + encodeURIComponent(id));
    const seconds = WRITE.seconds;
    sentence.textContent = told.sentence;
    rows("why-engines",
      [["engine"], ["cost", "number"], ["first token", "number"], ["in line", "number"],
       ["brought by", "number"], ["computing", "number"], ["reused", "number"],
       ["fetched", "number"], ["read", "number"]],
      told.engines.map(one => [one.engine, seconds(one.cost_seconds),
        seconds(one.first_token_seconds), seconds(one.wait_seconds), seconds(one.ready_seconds),
        seconds(one.work_seconds), one.reused_blocks, one.fetched_blocks, one.read_blocks]));
  } catch (error) {
    sentence.textContent = error.status === 404
      ? "no conductor remembers this request" : "conductors cannot be asked now: try again";
  }
}

function asking(one, known) {
  if (known.has(one.id)) return known.get(one.id);
  const button = made("button", new Date(1e3 * one.at).toLocaleTimeString());
  button.title = "why it was sent there";
  button.dataset.request = one.id;
  button.addEventListener("click", () => { location.hash = one.id; why(one.id); });
  return button;
}

function requests(found) {
  const seconds = v => v ? WRITE.seconds(v) : "–", table = document.getElementById("requests");
  const known = new Map([...table.querySelectorAll("button")].map(one => [one.dataset.request, one]));
  const at = table.contains(document.activeElement) ? document.activeElement : null;
  rows("requests",
    [["when"], ["how"], ["prompt", "number"], ["found", "number"], ["expected", "number"],
     ["TTFT", "number"], ["expected", "number"], ["tokens", "number"], ["whole", "number"],
     ["engines"], ["why no more was found"]],
    found.map(one => [
      asking(one, known), one.answer, one.prompt_tokens,
      one.cached_tokens ?? "–", one.expected_tokens, seconds(one.ttft_seconds),
      seconds(one.expected_seconds), one.output_tokens, seconds(one.seconds),
      one.engines.join(" → "), one.miss || (one.all_found ? "all was" : ""),
    ]));
  // Whoever was at a request still is; where it is no longer listed, at the table.
  if (at) (at.isConnected ? at : table.parentElement).focus({preventScroll: true});
}

function prefixes(found) {
  rows("prefixes",
    [["beginning"], ["tokens", "number"], ["requests lately", "number"], ["of all", "number"]],
    found.map(one => ["\u2003".repeat(one.depth) + (one.depth ? "└ " : "") + one.name,
      one.tokens.toLocaleString("en"), number(one.requests), WRITE.share(one.share)]));
}

function processes(found) {
  const of = (one, name, write) => name in one.holds ? write(one.holds[name]) : "";
  const tier = (one, name) => "tier_bytes " + name in one.holds
    ? bytes(one.holds["tier_bytes " + name]) + " of " + bytes(one.holds["tier_capacity_bytes " + name])
    : "";
  rows("processes",
    [["process"], ["metrics at"], ["state"], ["blocks", "number"], ["DRAM", "number"],
     ["SSD", "number"], ["requests", "number"], ["its memory", "number"], ["up for", "number"]],
    found.map(one => [one.process || "?", one.address, one.silent || "answers",
      of(one, one.process === "conductor" ? "known_blocks" : "blocks", v => v.toLocaleString("en")),
      tier(one, "dram"), tier(one, "ssd"),
      of(one, one.process === "gateway" ? "open_requests" : "running_requests", v => v),
      of(one, "resident_bytes", bytes), of(one, "uptime_seconds", WRITE.seconds)]));
}

async function asked(path) {
  const reply = await fetch(path, {signal: AbortSignal.timeout(5000)});
  if (!reply.ok) {
    throw Object.assign(new Error(path + " answers " + reply.status), {status: reply.status});
  }
  return reply.json();
}

// What has not changed is not said again to whoever listens to the page.
function say(text, name) {
  const state = document.getElementById("state");
  if (state.textContent !== text) state.textContent = text;
  state.className = name;
}

async function look() {
  let wait = 2;
  try {
    const [told, recent] = await Promise.all([asked("/board/charts"), asked("/board/requests")]);
    wait = told.tick_seconds;
    const silent = told.processes.filter(one => one.silent);
    say(told.processes.length === 0
      ? "nothing is watched: start the gateway with --watch HOST:PORT of each process's --metrics"
      : `${told.processes.length - silent.length} of ${told.processes.length} processes answer`,
      silent.length ? "bad" : "");
    figures(told.charts);
    // All of them have their places before one is drawn: it is as wide as its place is then.
    for (const chart of told.charts)
      if (!plots.has(chart.key)) plots.set(chart.key, article(chart));
    for (const chart of told.charts) draw(chart, told.times);
    processes(told.processes);
    prefixes(recent.prefixes);
    const last = JSON.stringify(recent.requests.map(one => one.id));
    if (last !== shown) requests(recent.requests);
    shown = last;
    document.body.dataset.drawn = told.times.length;
  } catch (error) {
    say("the gateway does not answer: " + error.message, "bad");
  }
  setTimeout(look, 1e3 * wait);
}

look();
if (location.hash.length > 1) why(decodeURIComponent(location.hash.slice(1)));
document.getElementById("why").addEventListener("close", () =>
  history.replaceState(null, "", location.pathname));
