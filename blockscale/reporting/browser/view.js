// SPDX-License-Identifier: BSD-3-Clause
// What is seen: four grids over the same elements, a histogram, and the element under the cursor.
"use strict";

const View = {
  cursor: 0,
  shown: null, // {format, x, rows, columns, found, values}

  /** Draws a result. */
  show(shown) {
    shown.values = new Float32Array(shown.found.values.buffer, shown.found.values.byteOffset, shown.x.length);
    this.shown = shown;
    this.cursor = Math.min(this.cursor, shown.x.length - 1);
    const largest = shown.x.reduce((most, each) => (Number.isFinite(each) ? Math.max(most, Math.abs(each)) : most), 0) || 1;
    const errors = shown.values.map((each, i) => each - shown.x[i]);
    const worst = errors.reduce((most, each) => (Number.isFinite(each) ? Math.max(most, Math.abs(each)) : most), 0) || 1;
    this.grid("numbers", (i) => diverging(shown.x[i] / largest));
    this.grid("values", (i) => diverging(shown.values[i] / largest));
    this.grid("errors", (i) => diverging(errors[i] / worst));
    const codes = Math.max(1, 2 ** Math.min(shown.format.bits, 16) - 1);
    this.grid("codes", (i) => sequential(shown.found.codes[i] / codes));
    this.histogram(largest);
    this.tell();
  },

  /** One grid: an element is a pixel, enlarged by the browser without smoothing. */
  grid(name, color) {
    const { rows, columns } = this.shown;
    const canvas = document.getElementById(name);
    canvas.width = columns;
    canvas.height = rows;
    const context = canvas.getContext("2d");
    const image = context.createImageData(columns, rows);
    for (let i = 0; i < rows * columns; i++) image.data.set(color(i), 4 * i);
    context.putImageData(image, 0, 0);
  },

  histogram(largest) {
    const canvas = document.getElementById("histogram");
    const context = canvas.getContext("2d");
    const bins = 120, { width, height } = canvas;
    const counts = [new Float64Array(bins), new Float64Array(bins)];
    [this.shown.x, this.shown.values].forEach((numbers, which) => {
      for (const each of numbers) {
        if (Number.isFinite(each)) counts[which][Math.min(bins - 1, Math.max(0, Math.floor(((each / largest + 1) / 2) * bins)))]++;
      }
    });
    const style = getComputedStyle(document.documentElement);
    const most = Math.log1p(Math.max(...counts[0], ...counts[1]));
    context.clearRect(0, 0, width, height);
    counts.forEach((each, which) => {
      context.fillStyle = style.getPropertyValue(which ? "--accent" : "--soft");
      each.forEach((count, bin) => {
        const tall = (Math.log1p(count) / most) * (height - 2);
        const wide = width / bins;
        context.fillRect(bin * wide + (which ? wide * 0.3 : 0), height - tall, which ? wide * 0.4 : wide * 0.95, tall);
      });
    });
    canvas.setAttribute("aria-label", `Histogram from ${-largest} to ${largest}, counts as logarithms: numbers grey, quantized values coloured`);
  },

  /** Says all of the element under the cursor, and puts a frame around it in every grid. */
  tell() {
    const { x, values, found, columns, rows, format } = this.shown;
    const i = this.cursor, block = blockOf(found.sizes, i);
    const row = Math.floor(i / columns), column = i % columns;
    const step = new Float32Array(new Uint32Array([found.steps[block]]).buffer)[0];
    const facts = {
      element: `[${row}, ${column}]`, number: short(x[i]), value: short(values[i]), error: short(values[i] - x[i]),
      code: `${found.codes[i]} = 0b${found.codes[i].toString(2).padStart(format.bits, "0")}`, block, step: short(step),
    };
    if (format.asym) facts["zero point"] = found.zeros[block] | 0;
    document.getElementById("element").innerHTML = Object.entries(facts).map(([name, fact]) => `<div><dt>${name}</dt><dd>${fact}</dd></div>`).join("");
    for (const frame of document.querySelectorAll(".frame")) {
      frame.style.left = `${(100 * column) / columns}%`;
      frame.style.top = `${(100 * row) / rows}%`;
      frame.style.width = `${100 / columns}%`;
      frame.style.height = `${100 / rows}%`;
    }
  },

  move(rows, columns) {
    const { columns: wide, rows: high } = this.shown;
    const row = Math.min(high - 1, Math.max(0, Math.floor(this.cursor / wide) + rows));
    const column = Math.min(wide - 1, Math.max(0, (this.cursor % wide) + columns));
    this.cursor = row * wide + column;
    this.tell();
  },

  point(event) {
    const place = event.currentTarget.getBoundingClientRect();
    const { rows, columns } = this.shown;
    const inside = (part, all) => Math.min(all - 1, Math.max(0, Math.floor(part * all)));
    const row = inside((event.clientY - place.top) / place.height, rows);
    this.cursor = row * columns + inside((event.clientX - place.left) / place.width, columns);
    this.tell();
  },
};

function short(number) {
  return Number.isFinite(number) ? String(Number(number.toPrecision(7))) : String(number);
}

/** From -1 (blue) over 0 (white) to 1 (orange); NaN is magenta. */
function diverging(part) {
  if (Number.isNaN(part)) return [200, 0, 160, 255];
  const t = Math.max(-1, Math.min(1, part)), s = Math.sqrt(Math.abs(t));
  const [r, g, b] = t < 0 ? [24, 92, 190] : [214, 96, 12];
  return [246 + (r - 246) * s, 246 + (g - 246) * s, 246 + (b - 246) * s, 255];
}

/** From 0 (dark) to 1 (light). */
function sequential(part) {
  const t = Math.max(0, Math.min(1, part));
  return [30 + 215 * t, 40 + 160 * t * t + 40 * t, 80 + 100 * Math.sin(Math.PI * t) + 20 * t, 255];
}
