// Light and dark: as the system has it, until somebody chooses.

const KEY = "nearcast.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();

export const isDark = () => document.documentElement.dataset.theme === "dark";

/** Call `listener` whenever the colours have changed. */
export function onTheme(listener) {
  listeners.add(listener);
}

function apply() {
  const chosen = localStorage.getItem(KEY);
  document.documentElement.dataset.theme = chosen ?? (system.matches ? "dark" : "light");
  for (const listener of listeners) listener();
}

/** Change from light to dark or back; a choice that is the system's is not kept. */
export function switchTheme() {
  const wanted = isDark() ? "light" : "dark";
  if (wanted === (system.matches ? "dark" : "light")) localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, wanted);
  apply();
}

/** Return the value of a colour of the style sheet, such as `--accent`. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

system.addEventListener("change", apply);
apply();
