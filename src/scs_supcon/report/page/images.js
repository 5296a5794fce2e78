// What every part of the page shares: the run's data, and how an image is shown and named.
const data = JSON.parse(document.getElementById("data-of-run").textContent);
const byId = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function show(image, index) {
  image.alt = data.names[index];
  if (!data.jpegs[index]) return image.removeAttribute("src");
  // Images of a few pixels look best as they are, not smoothed.
  image.addEventListener("load", () => image.classList.toggle("pixels", image.naturalWidth < 48), {
    once: true,
  });
  image.src = "data:image/jpeg;base64," + data.jpegs[index];
}

// A name may go on in the next line after a stroke or a slash.
function breakable(name) {
  return name.split(/(?<=[_/-])/).flatMap((part, at) => (at ? [make("wbr"), part] : [part]));
}

const label = (index) => data.classes[data.labels[index]];
const asked = (index) => data.predictions[index] >= 0;
const wrong = (index) => asked(index) && data.predictions[index] !== data.labels[index];

function verdict(index) {
  if (!asked(index)) return "a training image";
  const sure = Math.round(100 * data.chances[index]) + " %";
  const said = wrong(index)
    ? "taken for " + data.classes[data.predictions[index]] + ", " + sure + " sure"
    : "named rightly, " + sure + " sure";
  return data.refused[index] ? said + "; would be called none of these" : said;
}

function thumb(index, note, strange) {
  const image = make("img");
  show(image, index);
  image.alt = "";
  const button = make(
    "button",
    { type: "button", className: strange ? "thumb strange" : "thumb", title: data.names[index] },
    image,
    make("span", {}, ...breakable(label(index))),
    make("small", { textContent: note }),
  );
  button.addEventListener("click", () => choose(index, true));
  return make("li", {}, button);
}

for (const image of document.querySelectorAll("img[data-image]")) {
  const alt = image.alt;
  show(image, Number(image.dataset.image));
  image.alt = alt;
}
for (const button of document.querySelectorAll("button[data-choose]")) {
  button.addEventListener("click", () => choose(Number(button.dataset.choose), true));
}
