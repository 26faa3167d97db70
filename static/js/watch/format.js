// @ts-check
/** Numbers and times as people read them. Pure. */

const counts = new Intl.NumberFormat("en");

/** @param {number|null|undefined} value */
export function count(value) {
  return value === null || value === undefined ? "–" : counts.format(value);
}

/** 0.42 s, 12.3 s, 4 min 05 s, 2 h 07 min. @param {number|null|undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

/** @param {number|null|undefined} value @param {number} [digits] */
export function decimal(value, digits = 3) {
  return value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−");
}

/** v3 or v3–v7. @param {(number|null)[]} versions */
export function versionRange(versions) {
  const known = versions.filter((version) => version !== null);
  if (!known.length) return "";
  const least = Math.min(...known);
  const most = Math.max(...known);
  return least === most ? versionName(least) : `${versionName(least)}–${versionName(most)}`;
}

/** A scripted expert's tokens have version -1. @param {number|null} version */
export function versionName(version) {
  if (version === null) return "–";
  return version < 0 ? "expert" : `v${version}`;
}
