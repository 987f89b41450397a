/** Pictures in: samples, a file, a drop, the clipboard, the camera. */
import { $, element } from "../dom.js";
import { decode } from "../pixels.js";

export const LARGEST_FILE = 50_000_000; // bytes, the limit of vitlab's own image gate

/** An error whose message is meant for the person at the screen. */
export class NotAPicture extends Error {}

let opened = 0;

/** Read a file as a picture of the state: {id, kind, name, decoded}. */
async function read(blob, kind, name) {
  if (blob.size > LARGEST_FILE) {
    const size = (blob.size / 1e6).toFixed(0);
    throw new NotAPicture(`${name} has ${size} MB; the largest file allowed has ${LARGEST_FILE / 1e6} MB. Choose a smaller picture.`);
  }
  try {
    const decoded = await decode(blob);
    opened += 1;
    return { id: `${kind} ${name} ${opened}`, kind, name, decoded };
  } catch (error) {
    const why = error?.message ? ` (${error.message})` : "";
    throw new NotAPicture(`${name} is not a picture that this browser can read${why}. Choose a JPEG, PNG, WebP, GIF or BMP file.`);
  }
}

/** Fetch one of the listed samples. */
export async function openSample({ name, url }) {
  const answer = await fetch(url, { cache: "force-cache" }).catch(() => null); // its button has loaded it already
  if (!answer?.ok) throw new NotAPicture(`The sample picture ${name} could not be loaded. Is the server still running?`);
  return read(await answer.blob(), "sample", name);
}

/** Connect every way in. `onPicture(picture)` gets each picture, `onError(message)` each reason why there is none. */
export function connectPictures(samples, onPicture, onError) {
  const attempt = async (make) => {
    try {
      onPicture(await make());
    } catch (error) {
      onError(error.message);
    }
  };
  const open = (file) => attempt(() => read(file, "own", file.name || "The picture"));
  drawSamples(samples, (sample) => attempt(() => openSample(sample)));
  $("file").addEventListener("change", () => {
    if ($("file").files.length) open($("file").files[0]);
    $("file").value = "";
  });
  $("open-file").addEventListener("click", () => $("file").click());
  connectDrop(open, onError);
  document.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])][0];
    if (file) open(file);
    else if (!isTyping(event.target)) onError("The clipboard holds no picture. Copy a picture, not its address, then paste.");
  });
  connectCamera((blob) => attempt(() => read(blob, "own", "The camera picture")), onError);
}

export const isTyping = (target) => target instanceof HTMLElement && target.closest("input, select, textarea") !== null;

function drawSamples(samples, onChoose) {
  $("samples").replaceChildren(
    ...samples.map((sample) =>
      element(
        "button",
        { type: "button", "data-sample": sample.name, "aria-pressed": "false", title: sample.name, onclick: () => onChoose(sample) },
        element("img", { src: sample.url, alt: sample.name, width: 56, height: 56 }),
      ),
    ),
  );
}

export function markSample(picture) {
  for (const button of $("samples").children) {
    button.setAttribute("aria-pressed", String(picture?.kind === "sample" && button.dataset.sample === picture.name));
  }
}

function connectDrop(open, onError) {
  let inside = 0;
  const mark = (by) => {
    inside = Math.max(inside + by, 0);
    document.body.classList.toggle("dropping", inside > 0);
  };
  document.addEventListener("dragenter", () => mark(1));
  document.addEventListener("dragleave", () => mark(-1));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    mark(-inside);
    const file = event.dataTransfer.files[0];
    if (file) open(file);
    else onError("What was dropped is not a file. Save the picture first, then drop the file.");
  });
}

/** The camera is asked for only after a click; without one, the button stays hidden. */
function connectCamera(onShot, onError) {
  if (!navigator.mediaDevices?.getUserMedia) return;
  const [button, dialog, video] = [$("camera"), $("camera-dialog"), $("camera-video")];
  button.hidden = false;
  let stream = null;
  const stop = () => {
    for (const track of stream?.getTracks() ?? []) track.stop();
    stream = null;
  };
  button.addEventListener("click", async () => {
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch (error) {
      onError(`The camera cannot be used: ${error.message}. Allow it in the browser, or open a file.`);
      return;
    }
    video.srcObject = stream;
    dialog.showModal();
    await video.play();
  });
  dialog.addEventListener("close", stop);
  $("camera-cancel").addEventListener("click", () => dialog.close());
  $("camera-take").addEventListener("click", () => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
    if (!canvas.width) return;
    canvas.getContext("2d").drawImage(video, 0, 0);
    dialog.close();
    canvas.toBlob(onShot, "image/png");
  });
}
