// SPDX-License-Identifier: BSD-3-Clause
// What a visitor drops: .npy, .safetensors, images, raw float32 numbers. Nothing leaves the page.
"use strict";

const MOST = 1 << 22; // numbers that are taken of one tensor

/** {title, rows, columns, x: Float32Array} of each tensor in a file. Throws an Error that says why not. */
async function tensorsOf(file) {
  const name = file.name.toLowerCase();
  if (file.type.startsWith("image/")) return [await imageTensor(file)];
  const bytes = await file.arrayBuffer();
  if (name.endsWith(".npy")) return [npy(bytes, file.name)];
  if (name.endsWith(".safetensors")) return safetensors(bytes);
  if (bytes.byteLength === 0 || bytes.byteLength % 4) {
    throw new Error(`${file.name} has ${bytes.byteLength} bytes; float32 numbers have four each. Known are .npy, .safetensors, images and raw float32.`);
  }
  return [shaped(file.name, [bytes.byteLength / 4], (i) => new DataView(bytes).getFloat32(4 * i, true))];
}

/** A matrix of the first numbers of a tensor: its last dimension makes the columns. */
function shaped(title, shape, at) {
  const count = shape.reduce((a, b) => a * b, 1);
  if (count === 0) throw new Error(`${title} has no numbers: its shape is [${shape.join(", ")}].`);
  const columns = shape.length > 1 ? shape[shape.length - 1] : Math.min(count, 256);
  const rows = Math.max(1, Math.min(Math.floor(count / columns), Math.floor(MOST / columns)));
  const taken = Math.min(columns, MOST);
  const x = new Float32Array(rows * taken);
  for (let i = 0; i < x.length; i++) x[i] = at(i);
  const cut = rows * taken < count ? `, the first ${rows} × ${taken}` : "";
  return { title: `${title} [${shape.join(", ")}]${cut}`, rows, columns: taken, x };
}

const READERS = {
  F64: [8, (view, at) => view.getFloat64(at, true)],
  F32: [4, (view, at) => view.getFloat32(at, true)],
  F16: [2, (view, at) => half(view.getUint16(at, true))],
  BF16: [2, (view, at) => new Float32Array(new Uint32Array([view.getUint16(at, true) << 16]).buffer)[0]],
  I64: [8, (view, at) => Number(view.getBigInt64(at, true))],
  I32: [4, (view, at) => view.getInt32(at, true)],
  I16: [2, (view, at) => view.getInt16(at, true)],
  I8: [1, (view, at) => view.getInt8(at)],
  U8: [1, (view, at) => view.getUint8(at)],
};
const NUMPY = { "<f8": "F64", "<f4": "F32", "<f2": "F16", "<i8": "I64", "<i4": "I32", "<i2": "I16", "|i1": "I8", "|u1": "U8" };

function half(bits) {
  const exponent = (bits >> 10) & 31, fraction = bits & 1023, sign = bits & 0x8000 ? -1 : 1;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : (fraction / 1024) * 2 ** -14);
}

function npy(bytes, name) {
  const view = new DataView(bytes);
  if (bytes.byteLength < 12 || view.getUint32(0) !== 0x934e554d) throw new Error(`${name} does not begin as .npy files do.`);
  const long = view.getUint8(6) > 1;
  const start = long ? 12 : 10;
  const length = long ? view.getUint32(8, true) : view.getUint16(8, true);
  const header = new TextDecoder("latin1").decode(new Uint8Array(bytes).subarray(start, start + length));
  const type = NUMPY[(/'descr': '([^']+)'/.exec(header) || [])[1]];
  const shape = ((/'shape': \(([^)]*)\)/.exec(header) || [])[1] || "").split(",").map((each) => each.trim()).filter(Boolean).map(Number);
  if (!type || /'fortran_order': True/.test(header)) {
    throw new Error(`${name} holds ${header.trim()}; known are little-endian numbers in C order: ${Object.keys(NUMPY).join(", ")}.`);
  }
  const [size, read] = READERS[type];
  const needed = start + length + size * shape.reduce((a, b) => a * b, 1);
  if (bytes.byteLength < needed) throw new Error(`${name} is cut off: ${needed} bytes are expected, ${bytes.byteLength} are there.`);
  return shaped(name, shape.length ? shape : [1], (i) => read(view, start + length + size * i));
}

function safetensors(bytes) {
  const view = new DataView(bytes);
  const length = bytes.byteLength >= 8 ? Number(view.getBigUint64(0, true)) : Infinity;
  if (8 + length > bytes.byteLength) throw new Error("This is no .safetensors file: its header would be longer than the file.");
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes).subarray(8, 8 + length)));
  const found = [];
  for (const [name, { dtype, shape, data_offsets: offsets }] of Object.entries(header)) {
    if (name === "__metadata__" || !(dtype in READERS) || shape.includes(0)) continue;
    const [size, read] = READERS[dtype];
    const start = 8 + length + offsets[0];
    if (start + size * shape.reduce((a, b) => a * b, 1) > bytes.byteLength) throw new Error(`${name} lies beyond the end of the file.`);
    found.push({ name: `${name} [${shape.join(", ")}] ${dtype}`, make: () => shaped(name, shape.length ? shape : [1], (i) => read(view, start + size * i)) });
  }
  if (!found.length) throw new Error("No tensor of this file has numbers that the page knows.");
  return found;
}

/** A picture's brightness from -1 to 1, at most 256 pixels wide. */
async function imageTensor(file) {
  const picture = await createImageBitmap(file);
  const scale = Math.min(1, 256 / picture.width, 256 / picture.height);
  const columns = Math.max(1, Math.round(picture.width * scale)), rows = Math.max(1, Math.round(picture.height * scale));
  const canvas = new OffscreenCanvas(columns, rows).getContext("2d");
  canvas.drawImage(picture, 0, 0, columns, rows);
  const { data } = canvas.getImageData(0, 0, columns, rows);
  const x = new Float32Array(rows * columns);
  for (let i = 0; i < x.length; i++) x[i] = (0.299 * data[4 * i] + 0.587 * data[4 * i + 1] + 0.114 * data[4 * i + 2]) / 127.5 - 1;
  return { title: `${file.name}, brightness`, rows, columns, x };
}
