// SPDX-License-Identifier: BSD-3-Clause
"use strict";
// SVG by hand: elements, axes, and one way to look at points by mouse, touch and arrow keys.
const Draw = {
  // An element with attributes; names are only ever text nodes, so that none becomes markup.
  element(tag, attributes = {}, ...children) {
    const svg = Draw.tags.has(tag);
    const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  },
  tags: new Set(["svg", "g", "path", "rect", "circle", "text", "line"]),

  // Round numbers between low and high, about `count` of them.
  ticks(low, high, count) {
    const raw = (high - low) / Math.max(count, 1) || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw * 0.999);
    const found = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) found.push(Number((n * step).toPrecision(12)));
    return found;
  },

  number(value, digits = 3) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    return size >= 1e5 || size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(digits)));
  },
  share(value) {
    if (value > 0 && value < 1e-4) return "< 0.01 %";
    return `${(100 * value).toFixed(value === 0 || value === 1 ? 0 : 2)} %`;
  },
  bytes(value) {
    for (const unit of ["B", "kB", "MB", "GB"]) {
      if (value < 1000) return unit === "B" ? `${value} B` : `${value.toFixed(1)} ${unit}`;
      value /= 1000;
    }
    return `${value.toFixed(1)} TB`;
  },

  // A frame with axes in `place`: {svg, x, y, width, height, left, top}. x and y map numbers to pixels.
  frame(place, { title, height, x: [x0, x1], y: [y0, y1], across, xTicks = null, yTick = Draw.number, xTick = Draw.number }) {
    const width = Math.max(place.clientWidth, 260), left = 46, right = 12, top = 12, bottom = across ? 38 : 22;
    const svg = Draw.element("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: 0 });
    svg.setAttribute("aria-label", `${title}. Arrow keys move from point to point.`);
    const wide = width - left - right, high = height - top - bottom;
    const x = (value) => left + (wide * (value - x0)) / (x1 - x0 || 1);
    const y = (value) => top + high * (1 - (value - y0) / (y1 - y0 || 1));
    for (const tick of Draw.ticks(y0, y1, high / 42)) {
      svg.append(Draw.element("path", { class: "axis", d: `M${left} ${y(tick)}h${wide}` }));
      svg.append(Draw.element("text", { x: left - 7, y: y(tick) + 4, "text-anchor": "end" }, yTick(tick)));
    }
    for (const tick of xTicks ?? Draw.ticks(x0, x1, wide / 70)) {
      svg.append(Draw.element("text", { x: x(tick), y: top + high + 16, "text-anchor": "middle" }, xTick(tick)));
    }
    if (across) svg.append(Draw.element("text", { x: left + wide / 2, y: height - 5, "text-anchor": "middle" }, across));
    place.replaceChildren(Draw.element("h3", {}, title), svg);
    return { svg, x, y, left, top, width: wide, height: high };
  },

  // Points [{x, y, text}] in pixels: the nearest one to the pointer is ringed and told; Enter or a click chooses it.
  explore(svg, points, { choose = null, vertical = true } = {}) {
    const tip = document.getElementById("tip");
    const ring = Draw.element("circle", { class: "ring", r: 6, cx: -99, cy: -99 });
    svg.append(ring);
    let at = -1;
    const show = (index, touch) => {
      at = index;
      const point = points[index], box = svg.getBoundingClientRect();
      const scale = box.width / svg.viewBox.baseVal.width;
      ring.setAttribute("cx", point.x);
      ring.setAttribute("cy", point.y);
      tip.textContent = point.text;
      tip.hidden = false;
      const left = box.left + point.x * scale, top = box.top + point.y * scale;
      tip.style.left = `${Math.max(4, Math.min(left + 12, innerWidth - tip.offsetWidth - 4))}px`;
      const above = top - tip.offsetHeight - 12;
      tip.style.top = `${above > 0 && (touch || top > innerHeight / 2) ? above : top + 14}px`;
    };
    const hide = () => { at = -1; tip.hidden = true; ring.setAttribute("cx", -99); };
    const nearest = (event) => {
      const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
      const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
      let best = -1, least = Infinity;
      points.forEach((point, index) => {
        const far = (point.x - x) ** 2 + (vertical ? (point.y - y) ** 2 : 0);
        if (far < least) [best, least] = [index, far];
      });
      return best;
    };
    svg.addEventListener("pointermove", (event) => points.length && show(nearest(event), event.pointerType === "touch"));
    svg.addEventListener("pointerdown", (event) => points.length && show(nearest(event), event.pointerType === "touch"));
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("click", (event) => points.length && choose?.(points[nearest(event)]));
    svg.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
      if (event.key in steps && points.length) {
        show(Math.min(Math.max(at + steps[event.key], 0), points.length - 1));
        event.preventDefault();
      } else if (event.key === "Enter" && at >= 0) {
        choose?.(points[at]);
      } else if (event.key === "Escape") hide();
    });
  },
};
