// The page: what was told goes to those who show it, what is picked goes to the stream.

import { Charts } from "./charts.js";
import { byId, set } from "./dom.js";
import * as detail from "./detail.js";
import { Past } from "./past.js";
import { Picture } from "./picture.js";
import { Services } from "./services.js";
import { Stream } from "./stream.js";
import * as theme from "./theme.js";

const LIVE = { live: "live", waiting: "connecting", lost: "the agent does not answer" };

let now = null;
let service = null;
let node = null;

const past = new Past();
const picture = new Picture((name) => pick({ node: name === node ? null : name }));
const services = new Services((name) => pick({ service: name === service ? null : name }));
const charts = new Charts(byId("charts"));

/** A service or a node: one of them at a time, or none. The address of the page keeps it. */
const pick = ({ service: name = null, node: place = null }) => {
  const question = new URLSearchParams(name ? { service: name } : place ? { node: place } : {});
  history.replaceState(null, "", question.size ? `#${question}` : location.pathname);
  follow(name, place);
};

const follow = (name, place) => {
  const other = name !== service;
  [service, node] = [name, place];
  if (!service) detail.hide();
  if (other) stream.follow(service);
  draw();
};

const fromAddress = () => {
  const question = new URLSearchParams(location.hash.slice(1));
  return [question.get("service"), question.get("node")];
};

const draw = () => {
  if (!now) return;
  set(byId("where"), { text: `as ${now.here} sees it` });
  document.title = `Weir · ${now.here}`;
  picture.draw(now, past.peak(now.here), node);
  services.draw(now, service);
  charts.draw(past, now, service, node);
  const problems = byId("problems");
  problems.hidden = now.problems.length === 0;
  set(problems, { text: `What is missing: ${now.problems.join("; ")}` });
};

const stream = new Stream({
  past: (told) => past.reset(told),
  now: (told) => {
    now = told;
    past.add(told);
    if (!service) draw();
  },
  // It comes right behind the news of all.
  service: (told) => {
    if (told.name !== service) return;
    past.addService(told.point);
    detail.show(told);
    draw();
  },
  state: (state) => {
    byId("live").dataset.state = state;
    set(byId("live"), { text: LIVE[state] });
  },
});

theme.start();
byId("close").addEventListener("click", () => pick({}));
window.addEventListener("hashchange", () => follow(...fromAddress()));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && (service || node)) pick({});
});
[service, node] = fromAddress();
stream.follow(service);
