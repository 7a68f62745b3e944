// SPDX-License-Identifier: BSD-3-Clause
"use strict";
// The charts: weights on their grid, error and saturation by layer, the Pareto front of a search.
const Charts = {
  formats: [], // that are quantized, largest first: eight have a color, all else is grey
  color: (format) => `var(--c${(Charts.formats.slice(0, 8).indexOf(format) + 9) % 9})`,

  // The source's weights (grey) and the codes (orange) over the values of the format.
  histogram(place, tensor, grid) {
    const { from, to, values, codes, weights, beyond } = tensor.histogram;
    const bins = (codes ?? weights ?? []).length || 96, step = (to - from) / bins;
    const total = (counts) => counts.reduce((sum, n) => sum + n, 0) || 1;
    const all = total(values ?? codes);
    // A bar of a code is as wide as the numbers that it takes, so that areas can be compared.
    const width = (i) => {
      const low = i ? (grid[i - 1] + grid[i]) / 2 : from, high = i < grid.length - 1 ? (grid[i] + grid[i + 1]) / 2 : to;
      return Math.max(high - low, 1e-9);
    };
    const bars = values ? values.map((n, i) => ({ at: grid[i], n, density: n / all / width(i) })) : codes.map((n, i) => ({ at: from + (i + 0.5) * step, n, density: n / all / step }));
    const grey = (weights ?? []).map((n, i) => ({ at: from + (i + 0.5) * step, n, density: n / all / step }));
    const most = Math.max(...bars.map((bar) => bar.density), ...grey.map((bar) => bar.density), 1e-9);
    const frame = Draw.frame(place, {
      title: "Weights on the grid of the format", height: 250, x: [from, to], y: [0, most * 1.06],
      across: "value of the code, in steps of its block", yTick: (v) => Draw.number(v, 2),
    });
    const rect = (name, x, y, w) => frame.svg.append(Draw.element("rect", { class: name, x, y, width: Math.max(w, 0.5), height: Math.max(frame.y(0) - y, 0) }));
    for (const bar of grey) rect("weights", frame.x(bar.at - step / 2) + 0.25, frame.y(bar.density), frame.x(step) - frame.x(0) - 0.5);
    let lines = "";
    const top = grid.length > 64 ? frame.y(0) - 7 : frame.top; // many lines would hide what they are drawn over
    for (const value of grid) lines += `M${frame.x(value).toFixed(1)} ${top}V${frame.y(0)}`;
    frame.svg.append(Draw.element("path", { class: "gridline", d: lines }));
    const thin = values ? Math.min(7, Math.max(2, frame.width / (3 * grid.length))) : Math.max(frame.width / bins / 3, 1);
    for (const bar of bars) if (bar.n) rect("codes", frame.x(bar.at) - thin / 2, frame.y(bar.density), thin);
    if (grid.length) for (const end of [grid[0], grid[grid.length - 1]]) frame.svg.append(Draw.element("path", { class: "ends", d: `M${frame.x(end)} ${frame.top}V${frame.y(0)}` }));
    const what = values ? (bar) => `code ${Draw.number(bar.at, 5)}` : (bar) => `codes in ${Draw.number(bar.at - step / 2)} … ${Draw.number(bar.at + step / 2)}`;
    const points = bars.map((bar) => ({ x: frame.x(bar.at), y: frame.y(bar.density), text: `${what(bar)}\n${bar.n.toLocaleString("en")} elements, ${Draw.share(bar.n / all)}` }));
    for (const bar of grey) if (bar.n) points.push({ x: frame.x(bar.at), y: frame.y(bar.density), text: `weights in ${Draw.number(bar.at - step / 2)} … ${Draw.number(bar.at + step / 2)} steps\n${bar.n.toLocaleString("en")} elements, ${Draw.share(bar.n / all)}` });
    Draw.explore(frame.svg, points.sort((a, b) => a.x - b.x));
    const said = [["var(--accent)", "codes"], ["var(--grid)", "values of the format"], ["var(--c5)", "its ends"]];
    if (weights) said.unshift(["var(--weights)", beyond ? `weights of the source (${beyond.toLocaleString("en")} lie further out)` : "weights of the source"]);
    place.append(Charts.legend(said));
  },

  // A dot a tensor, in the order of the file.
  layers(place, tensors, key, title, tick, choose) {
    const known = tensors.map((tensor, index) => ({ tensor, index })).filter(({ tensor }) => tensor[key] != null);
    if (!known.length) return place.replaceChildren();
    const values = known.map(({ tensor }) => tensor[key]);
    const low = Math.min(0, ...values), high = Math.max(...values, low + 1e-6);
    const frame = Draw.frame(place, { title, height: 220, x: [-0.5, tensors.length - 0.5], y: [low, low + (high - low) * 1.06], across: "tensors by name", xTicks: [], yTick: tick });
    const paths = new Map();
    const points = known.map(({ tensor, index }) => {
      const point = { x: frame.x(index), y: frame.y(tensor[key]), tensor, text: `${tensor.name}\n${tensor.format}\n${Layers.columns[key].title} ${Layers.told(tensor, key)}` };
      paths.set(tensor.format, `${paths.get(tensor.format) ?? ""}M${point.x.toFixed(1)} ${point.y.toFixed(1)}h0`);
      return point;
    });
    for (const [format, d] of paths) {
      const dots = Draw.element("path", { class: "dots", d, "stroke-width": known.length > 1500 ? 3 : 7 });
      dots.style.stroke = Charts.color(format);
      frame.svg.append(dots);
    }
    Draw.explore(frame.svg, points, { choose: (point) => choose(point.tensor) });
    place.append(Charts.legend([...paths.keys()].map((format) => [Charts.color(format), format])));
  },

  // Quality by bits; the line joins the points that no other beats in both.
  pareto(place, { points, measure, chosen }, choose) {
    const bits = points.map((point) => point.bits), quality = points.map((point) => point.quality);
    const room = (low, high) => [low - 0.06 * (high - low || 1), high + 0.06 * (high - low || 1)];
    const frame = Draw.frame(place, { title: `${measure} by average bits a weight`, height: 320, x: room(Math.min(...bits), Math.max(...bits)), y: room(Math.min(...quality), Math.max(...quality)), across: "bits a weight, scales included", yTick: (v) => Draw.number(v, 5) });
    const kinds = { searched: ["var(--accent)", "searched"], uniform: ["var(--c0)", "one format for all layers"] };
    const kept = new Set();
    let best = -Infinity, front = "";
    for (const point of [...points].sort((a, b) => a.bits - b.bits || b.quality - a.quality)) {
      if (point.quality <= best) continue;
      best = point.quality;
      kept.add(point);
      front += `${front ? "L" : "M"}${frame.x(point.bits).toFixed(1)} ${frame.y(point.quality).toFixed(1)}`;
    }
    frame.svg.append(Draw.element("path", { class: "line", d: front }));
    const shown = points.map((point) => {
      const asked = point.kind === "searched" && point.bits === chosen, name = point.name ? `${point.name}\n` : "";
      const dot = Draw.element("circle", { cx: frame.x(point.bits), cy: frame.y(point.quality), r: asked ? 7 : 4.5 });
      dot.style.fill = kinds[point.kind][0];
      frame.svg.append(dot);
      const said = `${name}${point.bits.toFixed(3)} bits\n${measure} ${Draw.number(point.quality, 6)}`;
      const more = [kept.has(point) ? "no point is better in both" : "", asked ? "the one that was asked for" : ""];
      return { x: frame.x(point.bits), y: frame.y(point.quality), point, text: [said, ...more.filter(Boolean)].join("\n") };
    });
    Draw.explore(frame.svg, shown, { choose: ({ point }) => choose(point) });
    place.append(Charts.legend([...new Set(points.map((point) => point.kind))].map((kind) => kinds[kind])));
  },

  legend(entries) {
    return Draw.element("ul", { class: "legend" }, ...entries.map(([color, name]) => {
      const swatch = Draw.element("i", { class: "swatch" });
      swatch.style.background = color;
      return Draw.element("li", {}, swatch, name);
    }));
  },
};
