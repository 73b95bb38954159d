// Light or dark: as the system has it, unless this browser was told otherwise.

const KEY = "cellblock.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

export const theme = () => localStorage.getItem(KEY) ?? "system";

export const isDark = () => (theme() === "system" ? system.matches : theme() === "dark");

export function setTheme(name) {
  if (name === "system") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, name);
  show();
}

export function show() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
}

system.addEventListener("change", show);
