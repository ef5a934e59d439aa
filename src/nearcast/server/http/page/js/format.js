// Numbers, times and places as people read them.

const WHOLE = new Intl.NumberFormat("en");
const ONE = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** Return a count: `12,345`, or `1.2 M` from a million on. */
export function count(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Math.abs(value) >= 1e6) return `${ONE.format(value / 1e6)} M`;
  return WHOLE.format(Math.round(value));
}

/** Return a rate per second. */
export function rate(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return value < 10 && value > 0 ? ONE.format(value) : count(value);
}

/** Return a number of bytes with its unit. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
    if (value >= size) return `${ONE.format(value / size)} ${unit}`;
  return `${WHOLE.format(value)} B`;
}

/** Return a length in metres or kilometres. */
export function metres(value) {
  if (value === null || value === undefined) return "–";
  return value < 1000 ? `${Math.round(value)} m` : `${ONE.format(value / 1000)} km`;
}

/** Return a duration of seconds in its two largest units. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.max(0, Math.floor(seconds));
  const [d, hours, m, s] = [whole / 86400, (whole / 3600) % 24, (whole / 60) % 60, whole % 60].map(Math.floor);
  if (d) return `${d} d ${hours} h`;
  if (hours) return `${hours} h ${m} min`;
  return m ? `${m} min ${s} s` : `${s} s`;
}

/** Return the time of day of an instant in milliseconds. */
export function clock(ms) {
  return new Date(ms).toLocaleTimeString("en-GB");
}

/** Return milliseconds with a fitting precision. */
export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 10 ? `${ONE.format(value)} ms` : `${count(value)} ms`;
}

/** Return a place as people write it. */
export function place([lon, lat]) {
  return `${lat.toFixed(5)}, ${lon.toFixed(5)}`;
}

/** Return `1 client`, `2 clients`. */
export function many(number, noun, plural = `${noun}s`) {
  return `${count(number)} ${number === 1 ? noun : plural}`;
}
