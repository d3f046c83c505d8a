// All about one service: its endpoints with their shares, and why.

import { byId, html, keyed, set, style } from "./dom.js";
import { rate, share } from "./words.js";

const id = ({ port, protocol, family }) => `${port}/${protocol}/${family}`;

/** Shows a service as the agent told of it. */
export const show = ({ name, ports }) => {
  byId("detail").hidden = false;
  set(byId("detail-title"), { text: name });
  const root = byId("ports");
  if (ports.length === 0) {
    const text = "No service of this name follows the load on this node.";
    keyed(
      root,
      [text],
      (text) => text,
      (text) => html("p", { class: "quiet-text", text }),
      () => {},
    );
    return;
  }
  // The ones in use are open at first.
  const busiest = Math.max(...ports.map(({ offered, inbound }) => offered + inbound));
  const create = (port) => {
    const open = port.offered + port.inbound >= busiest * 0.5;
    return html(
      "details",
      { open },
      html("summary", {}, html("span", { class: "port" }), html("span", { class: "facts" })),
      html("div"),
    );
  };
  keyed(root, ports, id, create, update);
};

/** Shows none. */
export const hide = () => {
  byId("detail").hidden = true;
  byId("ports").replaceChildren();
};

const update = (node, port) => {
  const [summary, body] = node.children;
  const name = port.portName ? `${port.portName} ` : "";
  set(summary.children[0], { text: `${name}${port.port}/${port.protocol} · IPv${port.family}` });
  const facts = [`${rate(port.offered)}`, port.policy];
  if (port.inbound >= 0.05) facts.push(`${rate(port.inbound)} come`);
  set(summary.children[1], { text: facts.join(" · ") });
  const sets =
    port.sets.length > 0 ? port.sets : [{ classes: ["idle"], endpoints: [], reasons: [], spill: 0, idle: true }];
  keyed(
    body,
    sets,
    ({ classes }) => classes.join(" "),
    () =>
      html("div", { class: "set" }, html("p"), html("ul", { class: "endpoints" }), html("ul", { class: "reasons" })),
    updateSet,
  );
  if (port.leftOut > 0)
    body.lastElementChild.firstElementChild.append(` ${port.leftOut} endpoints with smaller shares are not shown.`);
};

const updateSet = (node, { classes, endpoints, reasons, spill, idle }) => {
  const [head, list, why] = node.children;
  const text = idle
    ? "Nobody uses it: new flows stay here while there are endpoints here."
    : `${share(spill)} of the ${classes.length > 2 ? "" : `${classes.join(" and ")} `}flows leave this node.`;
  set(head, { text });
  keyed(list, endpoints, ({ address }) => address, createEndpoint, updateEndpoint);
  keyed(
    why,
    reasons.map((text, index) => ({ text, index: String(index) })),
    ({ index }) => index,
    () => html("li"),
    (item, { text }) => set(item, { text }),
  );
};

const createEndpoint = () =>
  html(
    "li",
    {},
    html("span", { class: "address" }),
    html("span", { class: "share" }),
    html("span", { class: "bar", "aria-hidden": "true" }, html("i")),
    html("span", { class: "node" }),
  );

const updateEndpoint = (item, { address, node, local, share: part, ejected, cpu }) => {
  const [where, number, bar, note] = item.children;
  set(where, { text: address });
  set(number, { text: ejected ? "out" : share(part) });
  style(bar.firstElementChild, { width: `${(part * 100).toFixed(1)}%` });
  const notes = [
    node || "no node",
    ...(local ? ["this node"] : []),
    ...(cpu === null ? [] : [`CPU ${share(cpu)} of its limit`]),
  ];
  set(note, { text: (ejected ? [...notes, "ejected: failed, or its node is silent"] : notes).join(" · ") });
  item.className = ejected ? "ejected" : local ? "local" : "remote";
};
