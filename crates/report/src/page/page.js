"use strict";
(() => {
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

/* ---- elements ---- */
function node(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
function draw(parent, name, attributes = {}, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

/* ---- numbers ---- */
function shown(value) {
  return plain(value).replace("-", "−").replace("e−", "e-");
}
function plain(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  return Number(value.toPrecision(4)).toString();
}
const power = (exponent) => {
  const digits = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
  if (exponent === 0) return "1";
  if (exponent === 1) return "10";
  return "10" + [...String(exponent)].map((c) => digits[c]).join("");
};
/* One curve of a packed set; what is absent is NaN. Logarithms are undone. */
function unpack(packed, curve) {
  const { width, bytes, low, high } = packed;
  packed.raw = packed.raw || Uint8Array.from(atob(packed.data), (c) => c.charCodeAt(0));
  const most = bytes === 1 ? 254 : 65534;
  const values = [];
  for (let i = 0; i < width; i++) {
    const at = (curve * width + i) * bytes;
    const level = bytes === 1 ? packed.raw[at] : packed.raw[at] + 256 * packed.raw[at + 1];
    const value = low + ((level - 1) / most) * (high - low);
    values.push(level === 0 ? NaN : packed.log ? 10 ** value : value);
  }
  while (values.length && Number.isNaN(values[values.length - 1])) values.pop();
  return values;
}

/* ---- charts ---- */
function ticksOf(axis) {
  const [low, high] = axis.range;
  if (axis.ticks) return axis.ticks;
  if (axis.log) {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    const every = Math.max(1, Math.ceil((last - first + 1) / 6));
    const ticks = [];
    /* Less than two decades: 1, 2 and 5 of each. */
    if (Math.log10(high / low) < 2) {
      for (let e = first - 1; e <= last; e++) for (const n of [1, 2, 5]) {
        const value = Number(`${n}e${e}`);
        if (value >= low * 0.999 && value <= high * 1.001) ticks.push([value, shown(value)]);
      }
      return ticks;
    }
    for (let e = last; e >= first; e -= every) ticks.push([10 ** e, power(e)]);
    return ticks;
  }
  const rough = (high - low) / 5, unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * unit).find((s) => s >= rough) || unit;
  const ticks = [];
  for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-6; t += step) {
    const value = Math.abs(t) < step * 1e-6 ? 0 : t;
    ticks.push([value, Number(value.toPrecision(6)).toString()]);
  }
  return ticks;
}
const bounds = (lists, log) => {
  const all = lists.flat().filter((v) => Number.isFinite(v) && (!log || v > 0));
  if (!all.length) return log ? [0.1, 1] : [0, 1];
  let low = all[0], high = all[0];
  for (const v of all) { if (v < low) low = v; if (v > high) high = v; }
  if (low === high) return log ? [low / 3, high * 3] : [low - 0.5, high + 0.5];
  return [low, high];
};
let clips = 0;
/* A figure with axes, lines, bands, dots and marks. Series: {kind, kindClass, x, y, y2, name}. */
function chart(parent, options) {
  const figure = node("figure");
  figure.append(node("figcaption", {}, options.title));
  parent.append(figure);
  const width = Math.max(260, Math.round(figure.clientWidth - 24)) || 380;
  const room = { left: 54, right: options.square ? 14 : options.room || 64, top: 12, bottom: 38 };
  const square = Math.min(width - room.left - room.right, 310);
  const height = options.square ? square + room.top + room.bottom : options.height || 230;
  const svg = draw(figure, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${options.title}. ${options.summary || ""}` });
  let right = width - room.right, bottom = height - room.bottom, left = room.left, top = room.top;
  if (options.square) {
    const side = Math.min(right - left, bottom - top);
    left += (right - left - side) / 2;
    right = left + side;
    bottom = top + side;
  }
  const along = (axis, from, to) => {
    const f = axis.log ? Math.log10 : (v) => v;
    const [low, high] = axis.range.map(f);
    return (v) => from + ((f(v) - low) / (high - low)) * (to - from);
  };
  const X = along(options.x, left, right), Y = along(options.y, bottom, top);
  for (const [value, text] of ticksOf(options.y)) {
    if (value < options.y.range[0] * (options.y.log ? 0.999 : 1) - 1e-12) continue;
    draw(svg, "line", { class: "grid", x1: left, x2: right, y1: Y(value), y2: Y(value) });
    draw(svg, "text", { x: left - 6, y: Y(value) + 4, "text-anchor": "end" }, text);
  }
  for (const [value, text] of ticksOf(options.x)) {
    draw(svg, "line", { class: "grid", x1: X(value), x2: X(value), y1: top, y2: bottom });
    draw(svg, "text", { x: X(value), y: bottom + 15, "text-anchor": "middle" }, text);
  }
  draw(svg, "rect", { class: "axis", x: left, y: top, width: right - left, height: bottom - top });
  draw(svg, "text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, options.x.label);
  const turned = { x: 11, y: (top + bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 11 ${(top + bottom) / 2})` };
  draw(svg, "text", turned, options.y.label);
  const inside = (y) => Math.min(bottom, Math.max(top, y));
  const path = (series, key) => {
    let text = "", down = false;
    series.x.forEach((x, i) => {
      const y = series[key][i];
      if (!Number.isFinite(y) || (options.y.log && y <= 0)) { down = false; return; }
      text += `${down ? "L" : "M"}${X(x).toFixed(1)} ${inside(Y(y)).toFixed(1)}`;
      down = true;
    });
    return text;
  };
  if (options.circle) {
    const clip = draw(svg, "clipPath", { id: `clip-${++clips}` });
    draw(clip, "rect", { x: left, y: top, width: right - left, height: bottom - top });
    draw(svg, "circle", { class: "circle", cx: X(0), cy: Y(0), r: X(1) - X(0), "clip-path": `url(#clip-${clips})` });
  }
  const labels = [];
  for (const series of options.series) {
    const colour = series.colour;
    if (series.kind === "band") {
      const back = [...series.x.keys()].reverse();
      const over = path(series, "y");
      const under = path({ x: back.map((i) => series.x[i]), y: back.map((i) => Math.max(series.y2[i], options.y.log ? options.y.range[0] : -Infinity)) }, "y");
      draw(svg, "path", { class: `band fill ${colour}`, d: `${over}${under.replace(/^M/, "L")}Z` });
    } else if (series.kind === "line") {
      draw(svg, "path", { class: `line ${colour}${series.dashed ? " dashed" : ""}`, d: path(series, "y") });
    } else if (series.kind === "dots" || series.kind === "hollow") {
      const how = series.kind === "dots" ? "fill" : "hollow";
      series.x.forEach((x, i) => {
        if (Number.isFinite(series.y[i])) draw(svg, "circle", { class: `${how} ${colour}`, cx: X(x).toFixed(1), cy: inside(Y(series.y[i])).toFixed(1), r: series.r || 3 });
      });
    } else if (series.kind === "bars") {
      series.x.forEach((x, i) => {
        if (series.e[i]) draw(svg, "line", { class: colour, x1: X(x), x2: X(x), y1: inside(Y(series.y[i] - series.e[i])), y2: inside(Y(series.y[i] + series.e[i])) });
      });
    } else if (series.kind === "span") {
      draw(svg, "rect", { class: `band fill ${colour}`, x: X(series.from), width: Math.max(0, X(series.to) - X(series.from)), y: top, height: bottom - top });
      continue;
    } else if (series.kind === "mark") {
      draw(svg, "line", { class: colour, x1: X(series.at), x2: X(series.at), y1: top, y2: bottom, "stroke-width": 1.4 });
      draw(svg, "text", { class: `label ${colour}`, x: X(series.at) + 4, y: top + 12 }, series.name);
      continue;
    }
    if (series.name && !options.square) {
      let last = series.x.length - 1;
      while (last > 0 && !(Number.isFinite(series.y[last]) && (!options.y.log || series.y[last] > 0))) last--;
      const level = series.kind === "band" ? series.y2[last] : series.y[last];
      labels.push({ y: inside(Y(Number.isFinite(level) && (!options.y.log || level > 0) ? level : options.y.range[0])), text: series.name, colour });
    }
  }
  labels.sort((a, b) => a.y - b.y);
  labels.forEach((label, i) => { if (i && label.y < labels[i - 1].y + 13) label.y = labels[i - 1].y + 13; });
  const over = labels.length ? Math.max(0, labels[labels.length - 1].y - bottom) : 0;
  for (const label of labels) draw(svg, "text", { class: `label ${label.colour}`, x: right + 5, y: label.y - over + 4 }, label.text);
  if (options.ring) draw(svg, "circle", { class: "ring", cx: X(options.ring[0]), cy: Y(options.ring[1]), r: 8 });
  if (options.square) {
    let y = top + 14;
    for (const series of options.series) if (series.name) {
      draw(svg, "text", { class: `label ${series.colour}`, x: left + 6, y }, `${series.kind === "dots" ? "●" : "○"} ${series.name}`);
      y += 15;
    }
  } else {
    reader(figure, svg, options, { X, left, right, top, bottom, width });
  }
  figure.append(numbers(options));
  return { figure, svg };
}
/* A value as it is read: of a band its ends, and an error where there is one. */
function valueOf(s, i) {
  if (s.kind === "band") return `${shown(s.y2[i])} to ${shown(s.y[i])}`;
  return s.e && Number.isFinite(s.e[i]) && Number.isFinite(s.y[i]) ? `${shown(s.y[i])} ± ${shown(s.e[i])}` : shown(s.y[i]);
}
/* The cursor: the values of every series at a place, by pointer or arrow keys. */
function reader(figure, svg, options, frame) {
  const lines = options.series.filter((s) => s.x && s.kind !== "bars");
  const places = lines.length ? lines[0].x : [];
  if (!places.length) return;
  const out = node("output", { "aria-live": "polite" });
  figure.append(out);
  svg.setAttribute("tabindex", "0");
  svg.setAttribute("aria-roledescription", "chart; left and right arrow keys read values");
  let at = -1, mark;
  const read = (index) => {
    at = Math.max(0, Math.min(places.length - 1, index));
    if (mark) mark.remove();
    const x = frame.X(places[at]);
    mark = draw(svg, "line", { class: "cursor", x1: x, x2: x, y1: frame.top, y2: frame.bottom });
    const words = lines.filter((s) => s.name).map((s) => `${s.name} ${valueOf(s, at)}`);
    out.textContent = `${options.x.short || options.x.label} ${shown((options.x.read || ((v) => v))(places[at]))}: ${words.join(", ")}`;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * frame.width;
    let best = 0;
    places.forEach((p, i) => { if (Math.abs(frame.X(p) - x) < Math.abs(frame.X(places[best]) - x)) best = i; });
    read(best);
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageUp: 10, PageDown: -10 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    read(at + step);
  });
}
/* The numbers of a chart as a table, made when it is opened. */
function numbers(options) {
  const details = node("details", {}, node("summary", {}, "Numbers"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    const lists = options.series.filter((s) => s.x && s.name);
    const head = node("tr"), body = node("tbody");
    for (const s of lists) head.append(node("th", { scope: "col" }, options.square ? `${s.name}: real part` : options.x.short || options.x.label), node("th", { scope: "col" }, options.square ? "imaginary part" : s.name));
    const rows = Math.max(0, ...lists.map((s) => s.x.length));
    for (let i = 0; i < rows; i++) {
      const row = node("tr");
      for (const s of lists) row.append(node("td", {}, shown(s.x[i])), node("td", {}, valueOf(s, i)));
      body.append(row);
    }
    details.append(node("div", { class: "scroll", tabindex: "0" }, node("table", {}, node("thead", {}, head), body)));
  });
  return details;
}

/* ---- sections ---- */
const counted = (list, from = 0) => list.map((_, i) => i + from);
const percentText = (share) => `${shown(100 * share)} %`;

function spectra() {
  const place = byId("spectrum-charts");
  place.replaceChildren();
  for (const layer of data.layers) {
    const s = layer.spectrum;
    if (!s) { place.append(node("p", {}, `${layer.name}: no channel is stable, so there are no Hankel singular values.`)); continue; }
    const x = counted(s.median, 1), states = x.length;
    const floor = Math.max(1e-16, Math.min(1e-2, bounds([s.low.slice(0, Math.ceil(states * 0.9))], true)[0]));
    const low = 10 ** Math.floor(Math.log10(floor));
    const needed = s.bound.findIndex((b) => b < 0.01);
    const cutAt = s.cut && s.cut[1];
    const behind = s.cut && cutAt < states ? s.median[cutAt] : 0;
    const title = s.cut
      ? cutAt >= states ? `${layer.name}: all ${states} real states kept` : `${layer.name}: ${shown(cutAt)} of ${states} real states kept; the next value is ${shown(behind)} of the largest`
      : needed >= 0 ? `${layer.name}: ${needed} of ${states} real states leave an error bound below 1 %` : `${layer.name}: no cut leaves an error bound below 1 %`;
    const series = [
      { kind: "band", colour: "first", x, y: s.high, y2: s.low, name: "10–90 %" },
      { kind: "line", colour: "first", x, y: s.median, name: "median" },
      { kind: "line", colour: "bound", x: counted(s.bound), y: s.bound, name: "bound" },
    ];
    if (s.cut) {
      if (s.cut[0] !== s.cut[2]) { series.unshift({ kind: "span", colour: "second", from: s.cut[0], to: s.cut[2] }); }
      series.push({ kind: "mark", colour: "second", at: cutAt, name: s.cut[0] === s.cut[2] ? `cut: ${shown(cutAt)}` : `cut: ${shown(s.cut[0])} to ${shown(s.cut[2])}` });
    }
    chart(place, {
      title, series, summary: `Median of ${layer.channels.count} channels.`,
      x: { range: [0, states], label: "real state (two for each stored pair)", short: "state" },
      y: { range: [low, Math.max(2, bounds([s.bound], true)[1])], log: true, label: "σ / largest σ" },
    });
  }
}
/* The first band is frequency 0, which has no place on a logarithmic axis: it stands at the edge. */
function frequencies(cycles) {
  const edge = cycles.length > 2 ? cycles[1] ** 2 / cycles[2] / 1.6 : 1e-4;
  const x = cycles.map((c, i) => (i === 0 ? edge : c));
  const ticks = [[edge, "0"]];
  for (let e = Math.ceil(Math.log10(x[1])); e <= -1; e++) ticks.push([10 ** e, power(e)]);
  ticks.push([0.5, "½"]);
  return { x, axis: { range: [edge, 0.5], log: true, ticks, label: "frequency, cycles per step", short: "frequency", read: (v) => (v === edge ? 0 : v) } };
}
/* The input is drawn against the same axis, its largest value at that of the gain. */
function gains(place, title, f, full, error, input) {
  const { x, axis } = frequencies(f.cycles);
  const top = bounds([full, error || []], true)[1];
  const series = [{ kind: "line", colour: "first", x, y: full, name: "gain" }];
  if (error) series.push({ kind: "line", colour: "second", x, y: error, name: "error" });
  if (input) {
    const most = bounds([input], true)[1];
    series.push({ kind: "line", colour: "input", x, y: input.map((v) => (v / most) * top), name: "input*" });
  }
  const lowest = bounds(series.map((s) => s.y), true)[0];
  const low = 10 ** Math.floor(Math.log10(Math.max(lowest, top * 1e-6)));
  chart(place, { title, series, x: axis, y: { range: [low, top * 1.5], log: true, label: input ? "gain (*input, scaled)" : "gain" }, summary: input ? "The input is scaled so that its largest value is that of the gain." : "" });
}
const strongest = (list) => list.reduce((best, v, i) => (v > list[best] ? i : best), 0);
const place = (cycles) => (cycles === 0 ? "frequency 0" : `a period of ${shown(Number((1 / cycles).toPrecision(2)))} steps`);
function frequency() {
  const charts = byId("frequency-charts");
  charts.replaceChildren();
  for (const layer of data.layers) {
    const f = layer.frequency;
    if (!f) continue;
    let title = `${layer.name}: gain of the channels, root mean square`;
    if (f.error) {
      title = `${layer.name}: the error is largest at ${place(f.cycles[strongest(f.error)])}`;
      if (f.input) title += `, the input at ${place(f.cycles[strongest(f.input)])}`;
    } else if (f.input) title = `${layer.name}: the input is largest at ${place(f.cycles[strongest(f.input)])}`;
    gains(charts, title, f, f.full, f.error, f.input);
  }
}

/* ---- the heat map and one channel ---- */
const chosen = { layer: 0, channel: 0 };
/* Viridis, by a few of its colours. */
const SCALE = [[68, 1, 84], [71, 45, 123], [59, 82, 139], [44, 114, 142], [33, 145, 140], [40, 174, 128], [94, 201, 98], [173, 220, 48], [253, 231, 37]];
function shade(share) {
  const at = Math.max(0, Math.min(1, share)) * (SCALE.length - 1), i = Math.min(SCALE.length - 2, Math.floor(at));
  return `rgb(${SCALE[i].map((v, k) => Math.round(v + (SCALE[i + 1][k] - v) * (at - i))).join(",")})`;
}
function measures() {
  const names = [];
  for (const layer of data.layers) for (const m of layer.measures) if (!names.includes(m.name)) names.push(m.name);
  return names;
}
function heat() {
  const name = byId("measure").value, box = byId("heat");
  const lists = data.layers.map((layer) => layer.measures.find((m) => m.name === name));
  const unit = (lists.find((m) => m) || {}).unit || "";
  const all = lists.map((m) => (m ? m.values : []));
  const wide = bounds(all, false), positive = bounds(all, true);
  const log = wide[0] >= 0 && positive[1] / positive[0] > 100;
  const [low, high] = log ? [Math.max(positive[0], positive[1] * 1e-8), positive[1]] : wide;
  const share = (v) => (log ? Math.log10(Math.max(v, low) / low) / Math.log10(high / low) : (v - low) / (high - low || 1));
  const flat = all.flat(), same = flat.every((v) => v === flat[0]);
  const room = Math.max(160, box.clientWidth - 190);
  const most = Math.max(...data.layers.map((l) => l.channels.count));
  const side = Math.max(7, Math.min(22, Math.floor(room / Math.min(most, 64))));
  const columns = Math.max(1, Math.min(most, Math.floor(room / side)));
  box.replaceChildren();
  data.layers.forEach((layer, l) => {
    const count = layer.channels.count, rows = Math.ceil(count / columns), scale = window.devicePixelRatio || 1;
    const w = Math.min(count, columns) * side, h = rows * side;
    const canvas = node("canvas", { width: w * scale, height: h * scale, style: `width:${w}px;height:${h}px`, role: "img", "aria-label": `${layer.name}, ${name}: ${shown(bounds([all[l]])[0])} to ${shown(bounds([all[l]])[1])} ${unit}` });
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    for (let c = 0; c < count; c++) {
      const value = all[l][c], x = (c % columns) * side, y = Math.floor(c / columns) * side;
      pen.fillStyle = Number.isFinite(value) ? shade(same ? 0.5 : share(value)) : "#8888";
      pen.fillRect(x, y, side - 1, side - 1);
      if (l === chosen.layer && c === chosen.channel) {
        pen.strokeStyle = "#fff"; pen.lineWidth = 3; pen.strokeRect(x + 1.5, y + 1.5, side - 4, side - 4);
        pen.strokeStyle = "#000"; pen.lineWidth = 1; pen.strokeRect(x + 0.5, y + 0.5, side - 2, side - 2);
      }
    }
    canvas.addEventListener("click", (event) => {
      const spot = canvas.getBoundingClientRect();
      const c = Math.floor((event.clientX - spot.left) / side) + columns * Math.floor((event.clientY - spot.top) / side);
      if (c < count) choose(l, c);
    });
    box.append(node("div", { class: "row" }, node("span", { title: layer.name }, layer.name), canvas));
  });
  box.columns = columns;
  const legend = byId("heat-legend");
  legend.replaceChildren();
  if (same) { legend.append(`${name}: ${shown(flat[0])}${unit && " " + unit} in every channel`); return; }
  const bar = node("span", { "aria-hidden": "true", style: `display:inline-block;width:9rem;height:.9rem;background:linear-gradient(90deg,${[0, 0.25, 0.5, 0.75, 1].map(shade).join(",")})` });
  legend.append(`${shown(low)} ${unit}`, bar, `${shown(high)} ${unit}${log ? " (logarithmic)" : ""}`);
}
function choose(layer, channel) {
  const l = Math.max(0, Math.min(data.layers.length - 1, layer));
  const count = data.layers[l].channels.count;
  const c = Math.max(0, Math.min(count - 1, channel || 0));
  Object.assign(chosen, { layer: l, channel: c });
  byId("layer").value = l;
  byId("index").value = c;
  byId("index").max = count - 1;
  heat();
  oneChannel();
}
function oneChannel() {
  const layer = data.layers[chosen.layer], c = chosen.channel, set = layer.channels;
  const box = byId("channel-charts");
  box.replaceChildren();
  const words = layer.measures.map((m) => [m, m.values[c]]).filter(([, v]) => v !== null && v !== undefined);
  byId("channel-summary").textContent = `${layer.name}, channel ${c}: ` + words.map(([m, v]) => `${m.name} ${shown(v)}${m.unit ? " " + m.unit : ""}`).join("; ") + ".";
  const sigma = unpack(set.sigma, c);
  if (sigma.length) {
    const x = counted(sigma, 1), most = sigma[0], kept = layer.compared ? layer.measures.find((m) => m.name === "real states kept") : null;
    const cut = kept ? kept.values[c] : null;
    const low = 10 ** Math.max(-16, Math.floor(Math.log10(bounds([sigma.slice(0, Math.ceil(sigma.length * 0.95))], true)[0])));
    const series = [{ kind: "dots", colour: "first", x, y: sigma, r: 2.4, name: "σ" }];
    if (cut !== null) series.push({ kind: "mark", colour: "second", at: cut + 0.5, name: `cut: ${shown(cut)}` });
    chart(box, { title: `Hankel singular values: ${sigma.length}, the largest ${shown(most)}`, series, room: 26, x: { range: [0, sigma.length + 1], label: "real state", short: "state" }, y: { range: [Math.max(low, most * 1e-16), most * 2], log: true, label: "σ" } });
  } else box.append(node("p", {}, "This channel has modes that do not decay: no Hankel singular values, no gain over frequency."));
  const pairs = (packed) => {
    const flat = unpack(packed, c), x = [], y = [];
    for (let i = 0; i + 1 < flat.length; i += 2) if (Number.isFinite(flat[i])) { x.push(flat[i]); y.push(flat[i + 1]); if (Math.abs(flat[i + 1]) > 1e-4) { x.push(flat[i]); y.push(-flat[i + 1]); } }
    return { x, y };
  };
  const before = pairs(set.poles), after = set.poles_after ? pairs(set.poles_after) : null;
  const poles = [{ kind: "hollow", colour: "first", ...before, r: 3.2, name: after ? "before" : "poles" }];
  if (after) poles.push({ kind: "dots", colour: "second", ...after, r: 2.8, name: "after" });
  const slowest = Math.max(0, ...before.x.map((v, i) => Math.hypot(v, before.y[i])));
  const view = poleView(poles);
  chart(box, { square: true, circle: true, title: `Poles ${view.near ? "near 1, at the edge of" : "in"} the unit disc: the slowest keeps ${shown(100 * slowest)} % a step`, series: poles, x: { range: view.x, ticks: view.ticks, label: "real part" }, y: { range: view.y, ticks: view.ticks, label: "imaginary part" } });
  const peak = set.peaks[c], stride = set.stride[c];
  const kernel = unpack(set.kernel, c).map((v) => v * peak);
  const x = kernel.map((_, i) => 1 + (stride === 1 ? i : (i * stride) / 2));
  const lines = [{ kind: "line", colour: "first", x, y: kernel, name: after ? "before" : "kernel" }];
  if (set.kernel_after) lines.push({ kind: "line", colour: "second", dashed: true, x, y: unpack(set.kernel_after, c).map((v) => v * peak), name: "after" });
  const last = x.length ? Math.ceil(x[x.length - 1] + (stride > 1 ? stride / 2 : 0)) : 0;
  const first = set.first[c].map(shown).join(" → ");
  chart(box, { title: `Impulse response to step ${shown(last)}${stride > 1 ? `, least and largest of every ${stride} steps` : ""}; at step 0, with D: ${first}`, series: lines, x: { range: [0, Math.max(1, last)], label: "steps after the impulse", short: "step" }, y: { range: bounds(lines.map((s) => s.y)), label: "output" } });
  if (layer.frequency && sigma.length) {
    const error = set.error ? unpack(set.error, c) : null;
    const full = unpack(set.full, c);
    const at = error ? `the error is largest at ${place(layer.frequency.cycles[strongest(error)])}` : `the gain is largest at ${place(layer.frequency.cycles[strongest(full)])}`;
    gains(box, `Over frequency: ${at}`, layer.frequency, full, error, set.input ? unpack(set.input, c) : null);
  }
}
/* The whole disc, or a square around poles that stand close together. */
function poleView(sets) {
  const x = bounds(sets.map((s) => s.x)), y = bounds(sets.map((s) => s.y));
  const half = 0.56 * Math.max(x[1] - x[0], y[1] - y[0], 1e-6);
  if (half > 0.6) {
    const reach = Math.max(1.08, ...[x, y].flat().map((v) => 1.05 * Math.abs(v)));
    return { x: [-reach, reach], y: [-reach, reach], ticks: [[-1, "−1"], [0, "0"], [1, "1"]] };
  }
  const middle = ([low, high]) => (low + high) / 2;
  return { near: true, x: [middle(x) - half, middle(x) + half], y: [middle(y) - half, middle(y) + half] };
}
function channels() {
  const measure = byId("measure"), layer = byId("layer"), index = byId("index"), box = byId("heat");
  for (const name of measures()) measure.append(node("option", { value: name }, name));
  data.layers.forEach((l, i) => layer.append(node("option", { value: i }, l.name)));
  measure.addEventListener("change", heat);
  layer.addEventListener("change", () => choose(Number(layer.value), chosen.channel));
  index.addEventListener("input", () => { if (index.value !== "") choose(chosen.layer, Number(index.value)); });
  box.addEventListener("keydown", (event) => {
    const count = data.layers[chosen.layer].channels.count, columns = box.columns;
    let { layer: l, channel: c } = chosen;
    if (event.key === "ArrowRight") c += 1;
    else if (event.key === "ArrowLeft") c -= 1;
    else if (event.key === "ArrowDown") { if (c + columns < count) c += columns; else { l += 1; c %= columns; } }
    else if (event.key === "ArrowUp") { if (c >= columns) c -= columns; else l -= 1; }
    else return;
    event.preventDefault();
    choose(l, c);
    box.focus();
  });
}

/* ---- sizes ---- */
let sizeAt = 0;
function sizeChart() {
  const s = data.sizes, place = byId("size-chart");
  place.replaceChildren();
  const all = s.full ? [...s.points, s.full] : s.points;
  const x = all.map((p) => p.x), y = all.map((p) => p.y), e = all.map((p) => p.error);
  const range = bounds([y, y.map((v, i) => v - (e[i] || 0)), y.map((v, i) => v + (e[i] || 0))]);
  const margin = 0.06 * (range[1] - range[0]);
  const wide = bounds([x], true), ticks = [];
  const every = Math.max(1, Math.ceil(x.length / 9));
  x.forEach((v, i) => { if (i % every === 0 || i === x.length - 1) ticks.push([v, shown(v)]); });
  const spaced = ticks.filter((t, i) => i === 0 || i === ticks.length - 1 || Math.log(t[0] / ticks[i - 1][0]) > Math.log(wide[1] / wide[0]) / 14);
  const point = s.points[sizeAt];
  const title = s.recommended ? `${shown(s.points[s.recommended[0]].x)} ${s.x}: ${s.recommended[1]}` : `${s.y} against ${s.x}`;
  chart(place, {
    title, height: 300, room: 30, ring: point && [point.x, point.y],
    series: [{ kind: "line", colour: "first", x, y, name: "" }, { kind: "bars", colour: "first", x, y, e }, { kind: "dots", colour: "first", x, y, r: 3.5 }, ...(s.full ? [{ kind: "dots", colour: "second", x: [s.full.x], y: [s.full.y], r: 4.5 }] : [])],
    x: { range: [wide[0] / 1.15, wide[1] * 1.15], log: true, ticks: spaced, label: s.x, short: "size" },
    y: { range: [range[0] - margin, range[1] + margin], label: s.y },
  });
  const choice = byId("size-choice");
  choice.replaceChildren();
  if (!point) return;
  choice.append(node("dl", {}, ...point.details.map(([k, v]) => node("div", {}, node("dt", {}, k), node("dd", {}, v)))));
  if (s.recommended && s.recommended[0] === sizeAt) choice.append(node("p", {}, `Recommended: ${s.recommended[1]}.`));
  if (point.command) {
    const button = node("button", { type: "button" }, "Copy"), code = node("code", {}, point.command);
    button.addEventListener("click", () => copy(point.command, button, code));
    choice.append(node("div", { class: "command" }, code, button));
  }
}
function copy(text, button, code) {
  const done = () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); };
  const select = () => {
    const range = document.createRange();
    range.selectNodeContents(code);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    button.textContent = "Selected";
  };
  if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, select); else select();
}
function sizes() {
  const slider = byId("size"), s = data.sizes;
  slider.max = s.points.length - 1;
  sizeAt = s.recommended ? s.recommended[0] : 0;
  slider.value = sizeAt;
  const words = () => { const p = s.points[sizeAt]; slider.setAttribute("aria-valuetext", p ? `${shown(p.x)} ${s.x}, ${shown(p.y)} ${s.y}` : ""); };
  slider.addEventListener("input", () => { sizeAt = Number(slider.value); words(); sizeChart(); });
  words();
}

/* ---- line charts ---- */
function lineChart(place, c) {
  const x = c.places, series = [], ends = [];
  for (const line of c.lines) {
    const y = line.values, e = line.errors;
    ends.push(y, y.map((v, i) => v === null ? NaN : v - (e[i] || 0)), y.map((v, i) => v === null ? NaN : v + (e[i] || 0)));
    series.push({ kind: "line", colour: line.ink, dashed: line.dashed, x, y, e: e.length ? e : null, name: line.name });
    if (e.length) series.push({ kind: "bars", colour: line.ink, x, y, e }, { kind: "dots", colour: line.ink, x, y, r: 3 });
  }
  const range = bounds(ends, c.y.log), wide = bounds([x], c.x.log);
  const margin = c.y.log ? (range[1] / range[0]) ** 0.06 : 0.06 * (range[1] - range[0]);
  const names = Math.max(...c.lines.map((line) => line.name.length));
  chart(place, {
    title: c.title, series, height: 260, room: 14 + 6.6 * names,
    x: { range: c.x.log ? [wide[0] / 1.12, wide[1] * 1.12] : wide, log: c.x.log, ticks: c.x.at_places ? spaced(x, wide) : undefined, label: c.x.label, short: c.x.short },
    y: { range: c.y.log ? [range[0] / margin, range[1] * margin] : [range[0] - margin, range[1] + margin], log: c.y.log, label: c.y.label },
  });
}
/* Ticks at places, less those that stand too near to the one before. */
function spaced(places, wide) {
  const ticks = [];
  for (const v of places) if (!ticks.length || Math.log(v / ticks[ticks.length - 1][0]) > Math.log(wide[1] / wide[0]) / 14) ticks.push([v, shown(v)]);
  return ticks;
}
function lineCharts() {
  document.querySelectorAll("[data-charts]").forEach((place) => {
    place.replaceChildren();
    data.charts[place.dataset.charts].forEach((c) => lineChart(place, c));
  });
}

/* ---- tables, contents, record ---- */
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = node("button", { type: "button" }, head.textContent);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => { const cell = row.cells[column]; return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value); };
      const order = (a, b) => {
        const [one, two] = [key(a), key(b)];
        if (typeof one === "number" && typeof two === "number") return one - two;
        if (typeof one !== typeof two) return typeof one === "number" ? -1 : 1;
        return one.localeCompare(two, undefined, { numeric: true });
      };
      const rows = [...body.rows].sort(order);
      body.append(...(down ? rows.reverse() : rows));
    });
  });
}
function contents() {
  let number = 0;
  for (const section of document.querySelectorAll("section[data-title]")) {
    section.id = section.id || `part-${++number}`;
    byId("contents").append(node("li", {}, node("a", { href: `#${section.id}` }, section.dataset.title)));
  }
}
function record() {
  const text = byId("record").textContent;
  const details = byId("record-text").parentElement;
  details.addEventListener("toggle", () => { if (details.open) byId("record-text").textContent = JSON.stringify(JSON.parse(text), null, 1); });
  byId("save").addEventListener("click", () => {
    const link = node("a", { href: URL.createObjectURL(new Blob([text], { type: "application/json" })), download: "record.json" });
    link.click();
    URL.revokeObjectURL(link.href);
  });
}
function all() {
  if (data.sizes) sizeChart();
  lineCharts();
  if (!data.layers.length) return;
  spectra();
  choose(chosen.layer, chosen.channel);
  frequency();
}
contents();
document.querySelectorAll("table.sortable").forEach(sortable);
record();
if (data.sizes) sizes();
if (data.layers.length) channels();
all();
let known = document.body.clientWidth, waiting;
addEventListener("resize", () => {
  if (document.body.clientWidth === known) return;
  known = document.body.clientWidth;
  clearTimeout(waiting);
  waiting = setTimeout(all, 120);
});
/* In a frame that has no address a link to a place here would leave it. */
if (location.protocol === "about:") {
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (!link) return;
    event.preventDefault();
    byId(link.hash.slice(1)).scrollIntoView();
  });
}
document.documentElement.dataset.ready = "yes";
})();
