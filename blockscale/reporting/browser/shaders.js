// SPDX-License-Identifier: BSD-3-Clause
// Shaders on the visitor's GPU: composed of the declarations that the page carries, as gpu/shader.py does.
"use strict";

const Gpu = {
  device: null,
  name: "",
  pipelines: new Map(),

  /** Asks the browser for a GPU. Throws an Error that a visitor understands. */
  async start() {
    if (!("gpu" in navigator)) {
      const secure = window.isSecureContext
        ? "Chrome and Edge 113, Safari 26 and Firefox 141 have it, and later ones"
        : "browsers offer it to pages over https, on localhost or from a file only";
      throw new Error(`This browser has no WebGPU here: ${secure}.`);
    }
    const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
    if (!adapter) {
      throw new Error("This browser has WebGPU, and no GPU for it: its graphics driver is missing, too old or blocked (see chrome://gpu or about:support).");
    }
    const limits = {};
    for (const each of ["maxBufferSize", "maxStorageBufferBindingSize"]) limits[each] = adapter.limits[each];
    this.device = await adapter.requestDevice({ requiredLimits: limits });
    this.device.lost.then((lost) => { this.device = null; this.lost = lost.message || lost.reason; });
    const { vendor, architecture, description } = adapter.info;
    this.name = description || [vendor, architecture].filter(Boolean).join(" ") || "a GPU that does not tell its name";
    return this.name;
  },

  /** A buffer with these bytes, or of so many bytes. */
  buffer(content) {
    const given = ArrayBuffer.isView(content);
    const size = Math.max(4, Math.ceil((given ? content.byteLength : content) / 4) * 4);
    const most = this.device.limits.maxStorageBufferBindingSize;
    if (size > most) throw new Error(`${size} bytes are needed at once, and this GPU shows a program at most ${most}.`);
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST | GPUBufferUsage.UNIFORM;
    const buffer = this.device.createBuffer({ size, usage });
    if (given) this.device.queue.writeBuffer(buffer, 0, content.buffer, content.byteOffset, content.byteLength);
    return buffer;
  },

  /** Runs one shader: buffers by name, sizes by name, so many invocations. */
  async run(shader, buffers, sizes, invocations) {
    const { text, bindings } = composed(shader, Object.keys(sizes));
    const pipeline = await this.pipeline(text);
    const uniform = this.buffer(new Uint32Array([...Object.values(sizes), 0, 0, 0].slice(0, 4 * Math.ceil(Object.keys(sizes).length / 4))));
    const own = Object.entries(shader.tables).map(([name, listed]) => [name, this.buffer(new Uint32Array(listed))]);
    const named = { ...buffers, ...Object.fromEntries(own), sizes: uniform };
    const entries = bindings.map((name, binding) => ({ binding, resource: { buffer: named[name] } }));
    const group = this.device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries });
    const groups = Math.ceil(invocations / 64);
    const rows = Math.ceil(groups / 65535);
    const encoder = this.device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(Math.ceil(groups / rows), rows);
    pass.end();
    this.device.queue.submit([encoder.finish()]);
  },

  async pipeline(text) {
    if (!this.pipelines.has(text)) {
      const module = this.device.createShaderModule({ code: text });
      const errors = (await module.getCompilationInfo()).messages.filter((each) => each.type === "error");
      if (errors.length) throw new Error(`This browser refuses a shader, line ${errors[0].lineNum}: ${errors[0].message}`);
      const compute = { module, entryPoint: "main" };
      this.pipelines.set(text, await this.device.createComputePipelineAsync({ layout: "auto", compute }));
    }
    return this.pipelines.get(text);
  },

  /** The words of a buffer. */
  async read(buffer, words) {
    const size = Math.max(4, 4 * words);
    const copy = this.device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    const encoder = this.device.createCommandEncoder();
    encoder.copyBufferToBuffer(buffer, 0, copy, 0, size);
    this.device.queue.submit([encoder.finish()]);
    await copy.mapAsync(GPUMapMode.READ);
    const found = new Uint32Array(copy.getMappedRange().slice(0));
    copy.destroy();
    return found.subarray(0, words);
  },
};

/** WGSL of a shader {enabled, constants, declarations}, and the names of what it binds, in order. */
function composed(shader, sizes) {
  const members = sizes.map((name) => `${name}: u32`).join(", ");
  const bound = "@group(0) @binding(sizes) var<uniform> sizes: Sizes;";
  const declarations = shader.declarations.map((number) => PAGE.declarations[number]).join("\n");
  const whole = `${shader.constants}struct Sizes { ${members} };\n${bound}\n${declarations}\n`;
  const bindings = [...new Set([...whole.matchAll(/@binding\(([a-z_]+)\)/g)].map((found) => found[1]))];
  const text = whole.replace(/@binding\(([a-z_]+)\)/g, (_, name) => `@binding(${bindings.indexOf(name)})`);
  return { text: shader.enabled + text, bindings };
}
