// Light, dark, or as the system has it, remembered by the browser.

import { byId } from "./dom.js";

const THEMES = ["system", "light", "dark"];
const KEY = "weir-theme";

const remembered = () => {
  try {
    const theme = localStorage.getItem(KEY);
    return THEMES.includes(theme) ? theme : "system";
  } catch {
    // A browser that keeps nothing.
    return "system";
  }
};

const show = (theme) => {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
};

/** Makes the switch work. */
export const start = () => {
  let theme = remembered();
  show(theme);
  byId("theme").addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    show(theme);
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // It lasts as long as the page.
    }
  });
};
