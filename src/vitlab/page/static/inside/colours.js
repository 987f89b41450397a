/** Colour maps. The sequential map rises evenly in lightness, so that equal steps of a value look equal. */

const SEQUENCE = [ // dark violet, blue, teal, green, yellow
  [68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141],
  [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37],
];

/** 256 x 3 bytes: linear between the control points. */
export const TABLE = new Uint8ClampedArray(256 * 3);
for (let step = 0; step < 256; step++) {
  const place = (step / 255) * (SEQUENCE.length - 1);
  const left = Math.min(Math.floor(place), SEQUENCE.length - 2);
  for (let channel = 0; channel < 3; channel++) {
    const [a, b] = [SEQUENCE[left][channel], SEQUENCE[left + 1][channel]];
    TABLE[step * 3 + channel] = Math.round(a + (b - a) * (place - left));
  }
}

/** The row of TABLE for a value between low and high; values outside get the ends. */
export function step(value, low, high) {
  const share = high > low ? (value - low) / (high - low) : 0;
  return Math.round(255 * Math.min(Math.max(share, 0), 1));
}

export function hex(value, low, high) {
  const at = 3 * step(value, low, high);
  return `#${Array.from(TABLE.subarray(at, at + 3), (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/** Values (rows, columns) as an image of one pixel per value. Values that are not kept become transparent. */
export function painted(values, [rows, columns], low, high, kept) {
  const image = new ImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    const at = 3 * step(values[i], low, high);
    image.data.set(TABLE.subarray(at, at + 3), 4 * i);
    image.data[4 * i + 3] = kept[i] ? 255 : 0;
  }
  return image;
}

/** Colours (rows * columns, 3) of bytes as an image of one pixel per value. */
export function paintedColours(colours, [rows, columns], kept) {
  const image = new ImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    image.data.set(colours.subarray(3 * i, 3 * i + 3), 4 * i);
    image.data[4 * i + 3] = kept[i] ? 255 : 0;
  }
  return image;
}

const CLIPPED = 0.02; // share of the patches at either end of a component that get its extreme colour

/** Three components (count, 3) as bytes of red, green and blue, each over the range of most kept patches. */
export function componentColours(scores, count, kept) {
  const found = new Uint8ClampedArray(3 * count);
  for (let c = 0; c < 3; c++) {
    const sorted = Float64Array.from({ length: count }, (_, i) => scores[3 * i + c]).filter((_, i) => kept[i]).sort();
    const end = Math.floor(CLIPPED * sorted.length);
    const [low, high] = [sorted[end], sorted[sorted.length - 1 - end]];
    for (let i = 0; i < count; i++) found[3 * i + c] = high > low ? (255 * (scores[3 * i + c] - low)) / (high - low) : 128;
  }
  return found;
}
