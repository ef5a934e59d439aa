// Reads a vector tile (Mapbox Vector Tile 2): protocol buffers with layers, features and their lines.

const decoder = new TextDecoder();

/** Return the layers of a tile: {name, extent, features: [{type, parts, properties}]}; parts are x, y, x, y, … */
export function readTile(bytes) {
  return [...fields(bytes)].filter(([field]) => field === 3).map(([, layer]) => readLayer(layer));
}

function readLayer(bytes) {
  const layer = { name: "", extent: 4096, keys: [], values: [], raw: [] };
  for (const [field, value] of fields(bytes)) {
    if (field === 1) layer.name = decoder.decode(value);
    else if (field === 2) layer.raw.push(value);
    else if (field === 3) layer.keys.push(decoder.decode(value));
    else if (field === 4) layer.values.push(readValue(value));
    else if (field === 5) layer.extent = value || 4096;
  }
  const { name, extent } = layer;
  return { name, extent, features: layer.raw.map((one) => readFeature(one, layer)) };
}

/** Return a property that is a text; others are not drawn by. */
function readValue(bytes) {
  for (const [field, value] of fields(bytes)) if (field === 1) return decoder.decode(value);
  return null;
}

function readFeature(bytes, { keys, values }) {
  const feature = { type: 0, parts: [], properties: {} };
  for (const [field, value] of fields(bytes)) {
    if (field === 2) {
      const tags = numbers(value);
      for (let i = 0; i + 1 < tags.length; i += 2) feature.properties[keys[tags[i]]] = values[tags[i + 1]];
    } else if (field === 3) feature.type = value;
    else if (field === 4) feature.parts = readLines(numbers(value));
  }
  return feature;
}

/** Return the lines of a geometry: commands move to, line to and close, with zigzag differences. */
function readLines(given) {
  const parts = [];
  let [x, y, part] = [0, 0, []];
  for (let i = 0; i < given.length;) {
    const [command, times] = [given[i] & 7, given[i++] >>> 3];
    if (command === 7) continue;
    for (let n = 0; n < times && i + 1 < given.length; n++) {
      x += (given[i] >>> 1) ^ -(given[i++] & 1);
      y += (given[i] >>> 1) ^ -(given[i++] & 1);
      if (command === 1) parts.push((part = []));
      part.push(x, y);
    }
  }
  return parts;
}

function numbers(bytes) {
  const found = [];
  const at = { place: 0 };
  while (at.place < bytes.length) found.push(varint(bytes, at));
  return found;
}

function varint(bytes, at) {
  let [value, factor] = [0, 1];
  for (;;) {
    if (at.place >= bytes.length) throw new RangeError("a number that is cut off");
    const byte = bytes[at.place++];
    value += (byte & 0x7f) * factor;
    if (byte < 0x80) return value;
    factor *= 128;
  }
}

/** Yield the fields of a message as [number, value]: a number, or bytes. */
function* fields(bytes) {
  const at = { place: 0 };
  while (at.place < bytes.length) {
    const key = varint(bytes, at);
    const kind = key & 7;
    if (kind === 0) yield [key >>> 3, varint(bytes, at)];
    else {
      const length = kind === 2 ? varint(bytes, at) : kind === 1 ? 8 : kind === 5 ? 4 : NaN;
      if (!(at.place + length <= bytes.length)) throw new RangeError("a field that is cut off");
      yield [key >>> 3, bytes.subarray(at.place, (at.place += length))];
    }
  }
}
