// Numbers as people read them.

const digits = (number) => (number >= 10 ? number.toFixed(0) : number >= 0.05 ? number.toFixed(1) : "0");

/** New flows per second. */
export const rate = (number) => {
  if (number >= 9950) return `${(number / 1000).toFixed(0)}k/s`;
  if (number >= 995) return `${(number / 1000).toFixed(1)}k/s`;
  return `${digits(number)}/s`;
};

/** A share of the whole. */
export const share = (number) => {
  if (number === null || number === undefined || Number.isNaN(number)) return "–";
  const percent = number * 100;
  return `${percent > 0 && percent < 1 ? "<1" : percent.toFixed(0)} %`;
};

/** Seconds, as a time between nodes. */
export const delay = (seconds) => {
  if (seconds < 0.001) return `${Math.max(1, Math.round(seconds * 1e6))} µs`;
  return `${digits(seconds * 1000)} ms`;
};

/** Seconds that have passed. */
export const ago = (seconds) => {
  if (seconds < 1) return "now";
  const [minutes, rest] = [Math.floor(seconds / 60), Math.round(seconds % 60)];
  if (minutes === 0) return `${rest} s ago`;
  return rest === 0 ? `${minutes} min ago` : `${minutes} min ${rest} s ago`;
};

/** Cores. */
export const cores = (number) => `${Number(number.toFixed(2))} ${number === 1 ? "core" : "cores"}`;

/** a, b and c. */
export const list = (words) => {
  if (words.length < 2) return words.join("");
  return `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
};

/** What is known of a node, in words. */
export const state = { here: "this node", heard: "", silent: "silent: gets no new flows", unknown: "not heard of" };
