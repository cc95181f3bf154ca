// Two clusters side by side: sliders ask /board/whatif, and what it answers is drawn. The address
// of the page says what is set, so that it can be passed on.
"use strict";

const SIDES = ["left", "right"];
const CHARTS = [
  ["ttft", "Time to first token, mean of those that came then", "s", v => v.toFixed(2) + " s"],
  ["in_time", "Share in time", "", v => share(v)],
  ["queued", "Prompts in line", "", v => v.toFixed(1)],
  ["decoding", "Sequences that are decoded", "", v => v.toFixed(1)],
];
const asking = {left: null, right: null};
const drawn = new Map();  // by side, what its charts were drawn of
let line = Promise.resolve();  // one question at a time

// Only all is 100 %, and only nothing 0 %.
function share(v) {
  if (v < 1 - 1e-9 && v >= .9995) return ">99.9 %";
  return v > 0 && v < .0005 ? "<0.1 %" : (100 * v).toFixed(1) + " %";
}

function made(tag, text, name) {
  const one = document.createElement(tag);
  if (text !== undefined) one.textContent = text;
  if (name) one.className = name;
  return one;
}

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function control(side, name, field, value) {
  const row = made("label", field.text), told = made("span");
  told.setAttribute("aria-hidden", "true");  // a slider says itself how it stands
  let input;
  if (field.names) {
    input = made("select");
    input.append(...field.names.map(one => new Option(one, one, false, one === value)));
  } else {
    input = made("input");
    Object.assign(input, {type: "range", min: field.least, max: field.most, step: field.step});
    input.value = value;
    told.textContent = input.value;
    input.addEventListener("input", () => { told.textContent = input.value; });
  }
  input.name = name;
  input.addEventListener("change", () => ask(side));
  row.append(input, told);
  return row;
}

function section(side) {
  return document.querySelector(`[data-side=${side}]`);
}

function settings(side) {
  return new URLSearchParams(new FormData(section(side).querySelector("form")));
}

function figures(side, told) {
  const seconds = v => v >= 1 ? v.toFixed(2) + " s" : (1e3 * v).toFixed(1) + " ms";
  const times = one => one ? `${seconds(one.p50)} · ${seconds(one.p99)}` : "–";
  const of = told.outcome;
  const rows = [
    ["in time", share(of.share)], ["first token, p50 · p99", times(of.ttft)],
    ["each after it, p50 · p99", times(of.tpot)],
    ["prefilled tokens found", share(of.hits.local + of.hits.fetched + of.hits.ssd)],
    ["goodput, tokens a second", Math.round(of.goodput).toLocaleString("en")],
    ["prefill engines busy", share(of.prefill_busy)], ["decode room full", share(of.decode_full)],
  ];
  section(side).querySelector("table").replaceChildren(...rows.map(([name, value]) => {
    const row = made("tr");
    const head = made("th", name);
    head.scope = "row";
    row.append(head, made("td", value, "number"));
    row.dataset.figure = name;
    return row;
  }));
}

function words(title, values, write) {
  const known = values.filter(one => one !== null);
  if (!known.length) return title + ": nothing";
  const [least, most] = [Math.min(...known), Math.max(...known)].map(write);
  return `${title}: from ${least} to ${most}, ${write(known[known.length - 1])} at the end`;
}

function draw(side, told) {
  drawn.set(side, told);
  const soft = style("--soft"), rule = style("--rule");
  for (const [key, title, suffix, write] of CHARTS) {
    const plot = section(side).querySelector(`[data-plot=${key}]`);
    const layout = {
      margin: {l: 52, r: 8, t: 26, b: 26}, height: 180, showlegend: false,
      title: {text: title, font: {size: 12, color: soft}, x: 0.02},
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: soft, size: 11},
      xaxis: {gridcolor: rule, ticksuffix: "s"},
      yaxis: {gridcolor: rule, rangemode: "tozero", ticksuffix: suffix,
              tickformat: key === "in_time" ? ".0%" : undefined},
    };
    const curve = {x: told.timeline.seconds, y: told.timeline[key], type: "scatter", mode: "lines",
                   line: {color: "#1f77d0", width: 2}};
    plot.setAttribute("aria-label", words(title, told.timeline[key], write));
    Plotly.react(plot, [curve], layout, {displayModeBar: false, responsive: true});
    // What it measures texts with is no picture for anybody.
    document.getElementById("js-plotly-tester")?.setAttribute("aria-hidden", "true");
  }
}

async function answered(side, said) {
  const state = section(side).querySelector("[role=status]");
  state.textContent = "simulating…";
  state.className = "";
  try {
    let reply;
    do {
      reply = await fetch("/board/whatif/answer?" + said);
      if (reply.status === 429) await new Promise(done => setTimeout(done, 500));
    } while (reply.status === 429 && asking[side] === said);
    const told = await reply.json();
    if (asking[side] !== said) return;  // something else was set meanwhile
    if (!reply.ok) throw new Error(told.error);
    figures(side, told);
    draw(side, told);
    state.textContent = `${told.outcome.requests.toLocaleString("en")} requests`;
  } catch (error) {
    state.textContent = error.message;
    state.className = "bad";
  }
}

function ask(side) {
  const said = settings(side).toString();
  asking[side] = said;
  const both = new URLSearchParams(SIDES.map(one => [one, settings(one).toString()]));
  history.replaceState(null, "", "?" + both);
  line = line.then(() => asking[side] === said ? answered(side, said) : undefined);
}

async function begin() {
  const fields = await (await fetch("/board/whatif/choices")).json();
  const given = new URLSearchParams(location.search);
  for (const side of SIDES) {
    const set = new URLSearchParams(given.get(side) || ""), form = made("form");
    form.append(...Object.entries(fields).map(([name, field]) =>
      control(side, name, field, set.get(name) ?? field.usual)));
    form.addEventListener("submit", event => event.preventDefault());
    const state = made("p", "", "asks");
    state.setAttribute("role", "status");
    const table = made("table");
    table.setAttribute("aria-labelledby", side + "-title");
    form.setAttribute("aria-labelledby", side + "-title");
    section(side).append(form, state, table, ...CHARTS.map(([key]) => {
      const plot = made("div");
      plot.dataset.plot = key;
      plot.setAttribute("role", "img");
      return plot;
    }));
  }
  for (const side of SIDES) ask(side);
}

begin();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
  drawn.forEach((told, side) => draw(side, told)));
