// Shared by all pages: elements, requests, messages and drawing.
export const byId = (id) => document.getElementById(id);

export function create(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export class RequestError extends Error {}

// `body`: an object is sent as JSON, a file as it is.
export async function request(path, body) {
  const options = {};
  if (body !== undefined) {
    options.method = "POST";
    const plain = body instanceof Blob;
    options.body = plain ? body : JSON.stringify(body);
    options.headers = {
      "content-type": plain ? "application/octet-stream" : "application/json",
    };
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new RequestError("the server does not answer: is it still running?");
  }
  let document;
  try {
    document = await response.json();
  } catch {
    throw new RequestError(`the server answered ${response.status} without JSON`);
  }
  if (!response.ok) {
    const reason = document.failures?.[0]?.reason ?? document.error;
    throw new RequestError(reason ?? `the server answered ${response.status}`);
  }
  return document;
}

let messageTimer;

export function showError(error) {
  const box = byId("message");
  box.textContent = error.message ?? String(error);
  box.hidden = false;
  clearTimeout(messageTimer);
  messageTimer = setTimeout(() => (box.hidden = true), 8000);
  if (!(error instanceof RequestError)) throw error;
}

// Wrap an event handler so that failed requests are shown.
export const guarded =
  (handler) =>
  async (...values) => {
    try {
      await handler(...values);
    } catch (error) {
      showError(error);
    }
  };

export const announce = (text) => (byId("announcement").textContent = text);

export const percent = (value, digits = 0) => (100 * value).toFixed(digits) + "%";

export const imageUrl = (id, side = 160) => `/api/images/${id}?side=${side}`;

// Insert <wbr> after _, - and / so that long names can wrap.
export function breakable(name) {
  return name
    .split(/(?<=[_/-])/)
    .flatMap((piece, position) => (position ? [create("wbr"), piece] : [piece]));
}

// Do not smooth images of a few pixels.
export function crisp(image, limit = 48) {
  const check = () => image.classList.toggle("pixels", image.naturalWidth < limit);
  image.addEventListener("load", check, { once: true });
  return image;
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function onSchemeChange(redraw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

// Whether a key press belongs to a form control rather than to the page.
export function isTyping(event) {
  const control = event.target.closest?.("input, textarea, select");
  return Boolean(control) || event.ctrlKey || event.metaKey || event.altKey;
}
