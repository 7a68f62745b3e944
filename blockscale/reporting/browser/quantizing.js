// SPDX-License-Identifier: BSD-3-Clause
// One tensor through one format on the GPU: ranges of blocks, their scales, codes, values.
"use strict";

/** The blocks of a matrix in a format: sizes along rows and columns, null where whole. */
function boxes(format, rows, columns) {
  const flat = format.flat;
  const high = flat ? 1 : rows, wide = flat ? rows * columns : columns;
  const tall = Math.max(1, Math.min(format.block[0] ?? high, high)), broad = Math.max(1, Math.min(format.block[1] ?? wide, wide));
  const across = Math.ceil(wide / broad);
  return { rows: high, columns: wide, block_rows: tall, block_columns: broad, across, blocks: across * Math.ceil(high / tall) };
}

/** {codes, values, scales, zeros, steps, outer, sizes}: Uint32Arrays; values, steps are float32 bits. */
async function quantized(format, x, rows, columns) {
  const sizes = boxes(format, rows, columns);
  const count = x.length, blocks = sizes.blocks;
  const held = {
    numbers: Gpu.buffer(x), ranges: Gpu.buffer(16 * blocks), largest: Gpu.buffer(new Uint32Array(1)),
    chosen: Gpu.buffer(16 * blocks), codes: Gpu.buffer(4 * count), values: Gpu.buffer(4 * count),
  };
  try {
    await Gpu.run(format.shaders.ranges, held, sizes, blocks);
    await Gpu.run(format.shaders.scales, held, sizes, blocks);
    await Gpu.run(format.shaders.codes, held, sizes, count);
    const chosen = await Gpu.read(held.chosen, 4 * blocks);
    const every = (part) => Uint32Array.from({ length: blocks }, (_, i) => chosen[4 * i + part]);
    const [codes, values, largest] = [await Gpu.read(held.codes, count), await Gpu.read(held.values, count), await Gpu.read(held.largest, 1)];
    return { codes, values, scales: every(0), zeros: every(1), steps: every(2), offsets: every(3), largest, sizes };
  } finally {
    Object.values(held).forEach((each) => each.destroy());
  }
}

/** Which block an element is in. */
function blockOf(sizes, i) {
  const row = Math.floor(i / sizes.columns), column = i % sizes.columns;
  return Math.floor(row / sizes.block_rows) * sizes.across + Math.floor(column / sizes.block_columns);
}

/** How far the values are from the numbers: {sqnr, largest, used, bits}. Non-finite numbers are left out. */
function figures(format, x, found) {
  const values = new Float32Array(found.values.buffer, found.values.byteOffset, x.length);
  let signal = 0, noise = 0, largest = 0;
  for (let i = 0; i < x.length; i++) {
    if (!Number.isFinite(x[i]) || !Number.isFinite(values[i])) continue;
    const error = values[i] - x[i];
    signal += x[i] * x[i];
    noise += error * error;
    largest = Math.max(largest, Math.abs(error));
  }
  const bits = format.bits + (format.overhead * found.sizes.blocks + format.once) / x.length;
  return { sqnr: noise === 0 ? Infinity : 10 * Math.log10(signal / noise), largest, used: new Set(found.codes).size, bits };
}

/** Compares what this GPU computes with what the reference computed when the page was made. */
async function check(tell) {
  let equal = 0, cells = 0;
  const wrong = [];
  for (const [i, each] of PAGE.checks.entries()) {
    const format = PAGE.formats.find((other) => other.name === each.format);
    const x = new Float32Array(words(each.x).buffer);
    const found = await quantized(format, x, each.rows, each.columns);
    const expected = { codes: words(each.codes), values: words(each.values), scales: words(each.scales) };
    const differing = Object.keys(expected).filter((part) => !same(expected[part], found[part]));
    cells += expected.codes.length + expected.values.length + expected.scales.length;
    if (differing.length) wrong.push(`${each.format}: ${differing.join(", ")}`);
    else equal++;
    tell(i + 1, PAGE.checks.length);
  }
  return { equal, all: PAGE.checks.length, cells, wrong };
}

function same(a, b) {
  return a.length === b.length && a.every((each, i) => each === b[i]);
}

/** Words from base64. */
function words(text) {
  const bytes = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  return new Uint32Array(bytes.buffer);
}
