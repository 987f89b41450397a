// From a picture file to the pixels that a model expects: the same bytes as vitlab computes in Python.
//
// `prepare` follows data/transforms/evaluation.py and resizing.py. Antialiased bilinear and bicubic resizing is Pillow's,
// in fixed point; plain bilinear resizing is computed in single precision, one rounding at a time, as NumPy does. For
// these, every byte is the same. Area averaging is computed in double precision, where NumPy adds in another order: a mean
// that lies exactly between two values may be rounded the other way.

const MOST_PIXELS = 16_000_000; // of a resized picture, as in resizing.py
const PRECISION_BITS = 22; // of Pillow's weights: 32 bits, less 8 for the pixel and 2 for the sum
const HALF = 1 << (PRECISION_BITS - 1);

/** Decode an image file. Colour profiles are not applied, the EXIF orientation is, and transparency is over white. */
export async function decode(blob) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(blob, {
      colorSpaceConversion: "none",
      premultiplyAlpha: "none",
      imageOrientation: "from-image",
    });
  } catch {
    throw new Error("this browser cannot read the file as a picture; give a JPEG, PNG, WebP, GIF or BMP");
  }
  try {
    return readPixels(bitmap);
  } finally {
    bitmap.close();
  }
}

/** The pixels of anything that a canvas can draw, such as a video frame: {width, height, data}, RGBA without alpha. */
export function readPixels(source, width = source.width, height = source.height) {
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true, colorSpace: "srgb" });
  context.imageSmoothingEnabled = false;
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.drawImage(source, 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height);
  return { width, height, data };
}

/** Resize and crop a decoded picture as the card's preprocessing says: size[0] * size[1] * 3 bytes of RGB. */
export function prepare(picture, card, size = card.image) {
  const how = card.preprocessing;
  const [height, width] = size;
  let [rows, columns] = size.map((side) => Math.trunc(side / how.fraction + 1e-6));
  if (how.resize === "shorter") {
    const scale = Math.max(rows / picture.height, columns / picture.width);
    rows = Math.max(rows, Math.trunc(scale * picture.height + 1e-6));
    columns = Math.max(columns, Math.trunc(scale * picture.width + 1e-6));
  }
  if (rows * columns > MOST_PIXELS) {
    throw new Error(`the picture is ${picture.width} x ${picture.height}, too long and narrow; crop it first`);
  }
  const top = halfToEven((rows - height) / 2);
  const left = halfToEven((columns - width) / 2);
  const down = { old: picture.height, new: rows, first: top, count: height };
  const across = { old: picture.width, new: columns, first: left, count: width };
  if (how.antialias && how.interpolation !== "area") {
    return resample(picture.data, picture.width, across, down, FILTERS[how.interpolation], how.pillow);
  }
  if (rows === picture.height && columns === picture.width) {
    return crop(picture.data, picture.width, across, down);
  }
  const resize = how.interpolation === "area" ? areaMean : interpolate;
  return resize(picture.data, picture.width, across, down);
}

/** Round to the nearest whole number, halves to the even one, as Python and NumPy do. */
function halfToEven(value) {
  const below = Math.floor(value);
  const rest = value - below;
  return rest > 0.5 || (rest === 0.5 && below % 2 !== 0) ? below + 1 : below;
}

function crop(rgba, stride, across, down) {
  const result = new Uint8Array(down.count * across.count * 3);
  let at = 0;
  for (let y = down.first; y < down.first + down.count; y++) {
    for (let x = across.first; x < across.first + across.count; x++) {
      const from = (y * stride + x) * 4;
      result[at++] = rgba[from];
      result[at++] = rgba[from + 1];
      result[at++] = rgba[from + 2];
    }
  }
  return result;
}

// --- Pillow's resampling: weights per new pixel in fixed point, one axis after the other -------------------------------

const FILTERS = {
  bilinear: { support: 1, weight: (x) => (x < 1 ? 1 - x : 0) },
  bicubic: {
    support: 2,
    weight: (x) => {
      const a = -0.5;
      if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
      return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
    },
  },
};

/** The stretch of old pixels that the wanted new ones are made of, and for each of these its start in it and weights. */
function pillowWeights(axis, filter) {
  if (axis.old === axis.new) return { first: axis.first, used: axis.count, weights: null }; // Pillow does not filter it
  const scale = axis.old / axis.new;
  const stretch = Math.max(scale, 1);
  const support = filter.support * stretch;
  const most = Math.ceil(support) * 2 + 1;
  const starts = new Int32Array(axis.count);
  const counts = new Int32Array(axis.count);
  const weights = new Int32Array(axis.count * most);
  const exact = new Float64Array(most);
  for (let i = 0; i < axis.count; i++) {
    const centre = (axis.first + i + 0.5) * scale;
    const start = Math.max(Math.trunc(centre - support + 0.5), 0);
    const count = Math.min(Math.trunc(centre + support + 0.5), axis.old) - start;
    let sum = 0;
    for (let x = 0; x < count; x++) {
      exact[x] = filter.weight(Math.abs((x + start - centre + 0.5) * (1 / stretch)));
      sum += exact[x];
    }
    for (let x = 0; x < count; x++) {
      const weight = (sum === 0 ? exact[x] : exact[x] / sum) * 2 ** PRECISION_BITS;
      weights[i * most + x] = Math.trunc(weight < 0 ? weight - 0.5 : weight + 0.5);
    }
    starts[i] = start;
    counts[i] = count;
  }
  const first = starts[0];
  const used = starts[axis.count - 1] + counts[axis.count - 1] - first;
  return { first, used, weights, most, counts, starts: starts.map((start) => start - first) };
}

function resample(rgba, stride, across, down, filter, pillow) {
  const [horizontal, vertical] = [pillowWeights(across, filter), pillowWeights(down, filter)];
  const box = { first: horizontal.first, count: horizontal.used };
  const rgb = crop(rgba, stride, box, { first: vertical.first, count: vertical.used });
  if (isVerticalFirst(across, down, pillow)) {
    return alongRows(alongColumns(rgb, horizontal.used, vertical), horizontal.used, horizontal);
  }
  return alongColumns(alongRows(rgb, horizontal.used, horizontal), across.count, vertical);
}

/** Pillow 13 begins with the height if that shrinks by over twice as many pixels as the width; before, never. */
function isVerticalFirst(across, down, pillow) {
  return parseInt(pillow) >= 13 && down.old - down.new > Math.max(2 * (across.old - across.new), 0);
}

function clipped(sum) {
  const value = sum >> PRECISION_BITS;
  return value < 0 ? 0 : value > 255 ? 255 : value;
}

/** Filter every row of an RGB picture of this width. */
function alongRows(rgb, width, { starts, counts, weights, most }) {
  if (!weights) return rgb;
  const result = new Uint8Array((rgb.length / width) * starts.length);
  let at = 0;
  for (let row = 0; row < rgb.length; row += width * 3) {
    for (let i = 0; i < starts.length; i++) {
      let r = HALF;
      let g = HALF;
      let b = HALF;
      let old = row + starts[i] * 3;
      for (let w = i * most; w < i * most + counts[i]; w++, old += 3) {
        const weight = weights[w];
        r += rgb[old] * weight;
        g += rgb[old + 1] * weight;
        b += rgb[old + 2] * weight;
      }
      result[at++] = clipped(r);
      result[at++] = clipped(g);
      result[at++] = clipped(b);
    }
  }
  return result;
}

/** Filter every column of an RGB picture of this width. */
function alongColumns(rgb, width, { starts, counts, weights, most }) {
  if (!weights) return rgb;
  const row = width * 3;
  const result = new Uint8Array(starts.length * row);
  const sums = new Float64Array(row); // whole numbers
  for (let i = 0; i < starts.length; i++) {
    sums.fill(HALF);
    for (let y = 0; y < counts[i]; y++) {
      const weight = weights[i * most + y];
      const from = (starts[i] + y) * row;
      for (let x = 0; x < row; x++) sums[x] += rgb[from + x] * weight;
    }
    for (let x = 0; x < row; x++) result[i * row + x] = clipped(sums[x]);
  }
  return result;
}

// --- TensorFlow's bilinear and area resizing, as in resizing.py --------------------------------------------------------

/** For each new pixel, the two old ones around its centre and the weight of the second in single precision. */
function neighbours(axis) {
  const found = [];
  for (let i = axis.first; i < axis.first + axis.count; i++) {
    const centre = Math.min(Math.max((i + 0.5) * (axis.old / axis.new) - 0.5, 0), axis.old - 1);
    const first = Math.floor(centre);
    found.push([first, Math.min(first + 1, axis.old - 1), Math.fround(centre - first)]);
  }
  return found;
}

function interpolate(rgba, stride, across, down) {
  const f = Math.fround;
  const mixed = (a, b, weight) => f(f(a * f(1 - weight)) + f(b * weight));
  const columns = neighbours(across);
  const result = new Uint8Array(down.count * across.count * 3);
  let at = 0;
  for (const [above, below, lower] of neighbours(down)) {
    for (const [left, right, later] of columns) {
      for (let channel = 0; channel < 3; channel++) {
        const pixel = (y, x) => rgba[(y * stride + x) * 4 + channel];
        const upper = mixed(pixel(above, left), pixel(above, right), later);
        const under = mixed(pixel(below, left), pixel(below, right), later);
        result[at++] = halfToEven(mixed(upper, under, lower));
      }
    }
  }
  return result;
}

/** For each new pixel, the stretch of old ones under it: the first, and the weight of each. */
function stretches(axis) {
  const found = [];
  for (let i = axis.first; i < axis.first + axis.count; i++) {
    const begin = (axis.old * i) / axis.new;
    const end = (axis.old * (i + 1)) / axis.new;
    const first = Math.trunc(begin);
    const last = Math.min(Math.max(Math.ceil(end), first + 1), axis.old);
    const weights = [];
    for (let x = first; x < last; x++) weights.push(Math.min(x + 1, end) - Math.max(x, begin));
    found.push({ first, weights, length: end - begin });
  }
  return found;
}

function areaMean(rgba, stride, across, down) {
  const columns = stretches(across);
  const result = new Uint8Array(down.count * across.count * 3);
  const strip = new Float64Array(stride * 3); // the mean of the rows under a new one
  let at = 0;
  for (const { first, weights, length } of stretches(down)) {
    for (let x = 0; x < stride; x++) {
      for (let channel = 0; channel < 3; channel++) {
        let sum = 0;
        weights.forEach((weight, y) => (sum += weight * rgba[((first + y) * stride + x) * 4 + channel]));
        strip[x * 3 + channel] = sum / length;
      }
    }
    for (const column of columns) {
      for (let channel = 0; channel < 3; channel++) {
        let sum = 0;
        column.weights.forEach((weight, x) => (sum += weight * strip[(column.first + x) * 3 + channel]));
        result[at++] = halfToEven(sum / column.length);
      }
    }
  }
  return result;
}
