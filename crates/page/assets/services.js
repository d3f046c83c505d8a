// The list of services, busiest first, with a filter.

import { byId, html, keyed, set, style } from "./dom.js";
import { rate, share } from "./words.js";

export class Services {
  #list = byId("list");
  #filter = byId("filter");
  #choose;
  #now = null;
  #chosen = null;

  /** `choose` is told the name that is picked. */
  constructor(choose) {
    this.#choose = choose;
    this.#filter.addEventListener("input", () => this.#draw());
    this.#filter.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      const [first] = this.#shown();
      const asked = this.#filter.value.trim();
      // A service that nobody uses is not in the list, and can be asked for by its whole name.
      if (first) choose(first.name);
      else if (/^[^/\s]+\/[^/\s]+$/.test(asked)) choose(asked);
    });
    this.#list.addEventListener("keydown", (event) => this.#move(event));
  }

  draw(now, chosen) {
    this.#now = now;
    this.#chosen = chosen;
    this.#draw();
  }

  #shown() {
    const wanted = this.#filter.value.trim().toLowerCase();
    return (this.#now?.services ?? []).filter(({ name }) => name.toLowerCase().includes(wanted));
  }

  #draw() {
    if (!this.#now) return;
    const shown = this.#shown();
    const busiest = Math.max(1, ...shown.map(({ local, remote, inbound }) => local + remote + inbound));
    keyed(
      this.#list,
      shown,
      ({ name }) => name,
      (service) => this.#create(service),
      (row, service) => this.#update(row, service, busiest),
    );
    this.#tellMore(shown.length);
  }

  #create({ name }) {
    const [namespace, own] = name.split("/");
    const button = html(
      "button",
      { type: "button" },
      html(
        "span",
        { class: "service" },
        html("span", { class: "namespace", text: `${namespace}/` }),
        html("span", { text: own }),
      ),
      html("span", { class: "rate" }),
      html(
        "span",
        { class: "bar", "aria-hidden": "true" },
        html("i", { class: "stay" }),
        html("i", { class: "leave" }),
        html("i", { class: "come" }),
      ),
    );
    button.addEventListener("click", () => this.#choose(name));
    return html("li", {}, button);
  }

  #update(row, { name, local, remote, inbound, failures }, busiest) {
    const button = row.firstElementChild;
    const [, number, bar] = button.children;
    const offered = local + remote;
    const parts = [`${name}: ${rate(offered)} new flows`];
    if (offered >= 0.05) parts.push(`${share(remote / offered)} leave`);
    if (inbound >= 0.05) parts.push(`${rate(inbound)} come from other nodes`);
    if (failures >= 0.05) parts.push(`${rate(failures)} fail`);
    set(button, { "aria-pressed": name === this.#chosen ? "true" : "false", "aria-label": parts.join(", ") });
    set(number, { text: rate(offered + inbound) });
    button.dataset.failing = failures >= 0.05;
    [local, remote, inbound].forEach((flows, index) =>
      style(bar.children[index], { width: `${((flows / busiest) * 100).toFixed(1)}%` }),
    );
  }

  #tellMore(shown) {
    const { moreServices: more, services, steered } = this.#now;
    const text = byId("more-services");
    const parts = [];
    if (steered === 0)
      parts.push(
        "No service follows the load on this node: it takes a mesh key, a configuration file, or an annotation weir.dev/….",
      );
    else if (services.length === 0) parts.push("Nobody has used a service within the last ten minutes.");
    else if (shown === 0) parts.push("None of the services in use. Enter asks for namespace/name.");
    if (more) parts.push(`${more.count} more, ${rate(more.local + more.remote)} new flows.`);
    text.hidden = parts.length === 0;
    text.textContent = parts.join(" ");
  }

  #move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const buttons = [...this.#list.querySelectorAll("button")];
    const next = buttons[buttons.indexOf(document.activeElement) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
  }
}
