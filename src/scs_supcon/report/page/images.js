// Shared by the sections of the report: the data of the run, and how images are shown and described.
const data = JSON.parse(document.getElementById("page-data").textContent);
const byId = (id) => document.getElementById(id);

function createElement(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function showImage(image, index) {
  image.alt = data.names[index];
  if (!data.jpegs[index]) return image.removeAttribute("src");
  // Do not smooth images of a few pixels.
  image.addEventListener("load", () => image.classList.toggle("pixels", image.naturalWidth < 48), {
    once: true,
  });
  image.src = "data:image/jpeg;base64," + data.jpegs[index];
}

// Insert <wbr> after _, - and / so that long names can wrap.
function breakable(name) {
  return name
    .split(/(?<=[_/-])/)
    .flatMap((piece, position) => (position ? [createElement("wbr"), piece] : [piece]));
}

const labelOf = (index) => data.classes[data.labels[index]];
const hasPrediction = (index) => data.predictions[index] >= 0;
const isWrong = (index) =>
  hasPrediction(index) && data.predictions[index] !== data.labels[index];
const confidence = (index) => Math.round(100 * data.confidences[index]) + "% confidence";

function describePrediction(index) {
  if (!hasPrediction(index)) return "training image";
  const result = isWrong(index)
    ? "predicted as " + data.classes[data.predictions[index]]
    : "correct";
  return result + ", " + confidence(index) + (data.rejected[index] ? "; rejected as unknown" : "");
}

function thumbnail(index, note, otherClass) {
  const image = createElement("img");
  showImage(image, index);
  image.alt = "";
  const button = createElement(
    "button",
    {
      type: "button",
      className: otherClass ? "thumb other-class" : "thumb",
      title: data.names[index],
    },
    image,
    createElement("span", {}, ...breakable(labelOf(index))),
    createElement("small", { textContent: note }),
  );
  button.addEventListener("click", () => select(index, true));
  return createElement("li", {}, button);
}

for (const image of document.querySelectorAll("img[data-image]")) {
  const alt = image.alt;
  showImage(image, Number(image.dataset.image));
  image.alt = alt;
}
for (const button of document.querySelectorAll("button[data-choose]")) {
  button.addEventListener("click", () => select(Number(button.dataset.choose), true));
}
