// One node: a basin with its water.

import { set, style, svg } from "./dom.js";
import { cores, delay, rate, share, state as states } from "./words.js";

let count = 0;

/** A vessel with a round bottom, open above, whose walls begin at `top`. */
const vessel = (w, h, top) => {
  const r = Math.min(22, h * 0.3);
  return `M0 ${top}V${h - r}Q0 ${h} ${r} ${h}H${w - r}Q${w} ${h} ${w} ${h - r}V${top}`;
};

/** Waves twice as wide as the basin, so that they can drift by one wave without an end. */
const waves = (w, h, height) => {
  const wave = w / 2;
  let path = `M${-wave} 0`;
  for (let half = 0; half < 10; half += 1) path += `q${wave / 4} ${half % 2 === 0 ? -height : height} ${wave / 2} 0`;
  return `${path}V${h * 1.2}H${-wave}z`;
};

const words = (node, here) => {
  const parts = [node.name, states[node.state]];
  parts.push(node.level === null ? "CPU unknown" : `CPU ${share(node.level)}`);
  if (node.state === "here") return parts.join(", ");
  if (node.sent >= 0.05) parts.push(`gets ${rate(node.sent)} new flows from ${here}`);
  if (node.received >= 0.05) parts.push(`sends ${rate(node.received)} new flows to ${here}`);
  return parts.filter(Boolean).join(", ");
};

export class Basin {
  /** Under the flows, and above them. */
  back = svg("g", { class: "basin-back" });
  front = svg("g", { class: "basin", role: "button", tabindex: 0 });
  #parts = {};
  #size = "";

  constructor(name, choose) {
    this.front.dataset.node = name;
    const id = `basin${(count += 1)}`;
    const part = (key, tag, attributes, ...children) => (this.#parts[key] = svg(tag, attributes, ...children));
    this.back.append(part("glass", "path", { class: "glass" }));
    const water = (kind) => {
      const near = part(`${kind}Near`, "path", { class: "wave near" });
      const far = part(`${kind}Far`, "path", { class: "wave far" });
      return part(kind, "g", { class: kind }, far, near);
    };
    this.front.append(
      svg("clipPath", { id }, part("inside", "path")),
      svg("clipPath", { id: `${id}above` }, part("above", "rect")),
      svg(
        "g",
        { "clip-path": `url(#${id})` },
        water("water"),
        svg("g", { "clip-path": `url(#${id}above)` }, water("over")),
      ),
      part("crest", "path", { class: "crest" }),
      part("crestText", "text", { class: "crest-text", "text-anchor": "end" }),
      part("wall", "path", { class: "wall" }),
      part("level", "text", { class: "level" }),
      part("name", "text", { class: "name" }),
      part("note", "text", { class: "note" }),
      part("stays", "text", { class: "stays" }),
    );
    this.front.addEventListener("click", () => choose(name));
    this.front.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      choose(name);
    });
  }

  /** `now`: the node and everything else; `chosen`: whether it is looked at. */
  update(node, box, now, chosen) {
    const own = node.state === "here";
    this.#place(box, own, now.crest);
    const { water, over, crest, crestText, level, name, note, stays } = this.#parts;
    // A level is never quite at the edges: an empty basin and a full one look like it.
    const height = node.level === null ? box.h + 8 : box.h * (1 - Math.min(0.99, node.level));
    for (const body of [water, over]) style(body, { transform: `translateY(${height.toFixed(1)}px)` });
    const y = box.h * (1 - now.crest);
    set(crest, { d: `M0 ${y}H${box.w}` });
    set(this.#parts.above, { x: 0, y: -20, width: box.w, height: y + 20 });
    set(crestText, { x: box.w - 9, y: y + 16, text: own && box.w > 240 ? `level ${share(now.crest)}` : "" });
    set(level, { text: own || node.level === null ? share(node.level) : `${share(node.level)} full` });
    set(name, { text: node.name });
    set(note, { text: this.#note(node) });
    set(stays, { text: own && now.total.local >= 0.05 ? `${rate(now.total.local)} stay here` : "" });
    set(this.front, { "aria-label": words(node, now.here), "aria-pressed": chosen ? "true" : "false" });
    for (const group of [this.front, this.back]) {
      group.dataset.state = node.state;
      group.dataset.over = node.level !== null && node.level > now.crest;
    }
  }

  #note({ state, rtt, cores: number }) {
    if (state === "silent") return "silent";
    if (state === "unknown") return "not heard of";
    const parts = [rtt === null ? null : delay(rtt), number > 0 ? cores(number) : null];
    return parts.filter(Boolean).join(" · ");
  }

  /** Everything that hangs on the size. */
  #place(box, own, crest) {
    const move = `translate(${box.x.toFixed(1)}px, ${box.y.toFixed(1)}px)`;
    for (const group of [this.front, this.back]) style(group, { transform: move });
    const { w, h } = box;
    const size = `${w}x${h}x${crest}`;
    if (this.#size === size) return;
    this.#size = size;
    const { glass, inside, wall, level, name, note, stays } = this.#parts;
    const rim = h * (1 - crest);
    set(glass, { d: vessel(w, h, rim) });
    set(inside, { d: `${vessel(w, h, -12)}z` });
    // Lips over which the water falls.
    set(wall, {
      d: `M-7 ${rim}H0${vessel(w, h, rim)
        .slice(1)
        .replace(/^0 [^V]*/, "")}H${w + 7}`,
    });
    for (const kind of ["water", "over"]) {
      set(this.#parts[`${kind}Near`], { d: waves(w, h, own ? 5 : 3) });
      set(this.#parts[`${kind}Far`], { d: waves(w, h, own ? 7 : 4) });
    }
    style(this.front, { "--wave": `${w / 2}px` });
    this.front.dataset.own = own;
    // In the own basin beside the water that comes down, below the others.
    const anchor = own ? "start" : "middle";
    const x = own ? Math.min(24, w * 0.08) : w / 2;
    const big = Math.min(44, h * 0.28);
    style(level, { "--size": own ? `${big}px` : "14px" });
    set(level, { x, y: own ? rim + (h - rim) * 0.42 : h + 40, "text-anchor": anchor });
    set(name, { x, y: own ? rim + (h - rim) * 0.42 + 24 : h + 22, "text-anchor": anchor });
    set(stays, { x, y: rim + (h - rim) * 0.42 + 43, "text-anchor": anchor });
    set(note, { x: own ? w - 14 : w / 2, y: own ? h - 14 : h + 57, "text-anchor": own ? "end" : "middle" });
  }
}
