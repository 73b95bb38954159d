// Numbers, times and sizes as people read them.

export function size(bytes) {
  if (bytes == null) return "";
  if (bytes < 1000) return `${bytes} B`;
  for (const [unit, power] of [["kB", 1e3], ["MB", 1e6], ["GB", 1e9], ["TB", 1e12]]) {
    if (bytes < power * 999.5) return `${(bytes / power).toFixed(bytes < power * 9.95 ? 1 : 0)} ${unit}`;
  }
  return `${bytes} B`;
}

export function span(seconds) {
  if (seconds == null || !isFinite(seconds)) return "";
  if (seconds < 0.0995) return `${Math.max(Math.round(seconds * 1000), 0)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export const age = (at) => span(Math.max(Date.now() / 1000 - at, 0));

/** A time that runs: 0:07, 12:30, 1:02:03. */
export function clock(seconds) {
  const whole = Math.max(Math.floor(seconds), 0);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (number) => String(number).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

export const count = (number) => number.toLocaleString("en");

export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

export const moment = (at) => new Date(at * 1000).toLocaleTimeString([], { hour12: false });
