// The page "Retrain": train a new run with the corrected labels, compare, promote.
import {
  announce, breakable, byId, create, crisp, guarded, imageUrl, percent, request,
} from "./common.js";
import { intervals } from "./charts.js";

const STATES = {
  running: "Training", stopped: "Stopped; it can be resumed from its last checkpoint.",
  failed: "Failed; the log says why.", finished: "Finished",
};
let state = null;
let timer;

const refresh = guarded(async () => {
  clearTimeout(timer);
  const status = await request("/api/retrain");
  showStatus(status);
  const ended = state === "running" && status.state !== "running";
  const first = state === null;
  state = status.state;
  if (first || ended) await showRuns(ended ? status.run : null);
  if (state === "running") timer = setTimeout(refresh, 1000);
});

function showStatus(status) {
  const count = status.corrections ?? 0;
  byId("pending").textContent =
    `${count.toLocaleString()} corrected ${count === 1 ? "label" : "labels"} in corrections.jsonl`;
  const edited = status.edited_test_images;
  byId("edited").hidden = !edited;
  byId("edited").textContent =
    `${edited} test ${edited === 1 ? "label was" : "labels were"} edited. Runs are compared ` +
    "on the other test images only: a test set that was corrected with the help of a model " +
    "favours this model.";
  const running = status.state === "running";
  byId("start").disabled = running;
  byId("stop").hidden = !running;
  byId("resume").hidden = !["stopped", "failed"].includes(status.state);
  byId("job").hidden = status.state === "none";
  if (status.state === "none") return;
  const { progress } = status;
  byId("state").textContent =
    `${status.run}: ${STATES[status.state]}` + (progress ? ` – ${progress.title}` : "");
  const bar = byId("progress");
  bar.hidden = !running;
  if (progress?.total) {
    bar.max = progress.total;
    bar.value = progress.done;
  } else bar.removeAttribute("value");
  byId("log").textContent = status.lines.join("\n");
  byId("command").textContent = status.command;
  document.title = running && progress?.total
    ? `${percent(progress.done / progress.total)} · Retrain` : "Retrain";
}

async function showRuns(newest) {
  const { runs, current } = await request("/api/runs");
  byId("nothing").hidden = runs.length > 1;
  byId("compared").hidden = runs.length < 2;
  if (runs.length < 2) return;
  for (const [id, chosen] of [["old", runs.at(-2)], ["new", newest ?? runs.at(-1)]]) {
    byId(id).replaceChildren(
      ...runs.map((name) =>
        create("option", { value: name, textContent: name, selected: name === chosen }),
      ),
    );
  }
  await showComparison(current);
}

async function showComparison(current) {
  current ??= (await request("/api/runs")).current;
  const query = new URLSearchParams({ old: byId("old").value, new: byId("new").value });
  const result = await request(`/api/compare?${query}`);
  byId("left-out").hidden = !result.left_out;
  byId("left-out").textContent =
    `${result.left_out} edited ${result.split} images are left out of this comparison.`;
  byId("accuracies").replaceChildren(
    intervals(
      [result.old, result.new].map((name, side) => ({ name, ...result.accuracy[side] })),
      `Accuracy on ${result.images.toLocaleString()} ${result.split} images, 95% interval`,
    ),
  );
  byId("verdict").textContent = sentence(result);
  byId("promotion").replaceChildren(
    ...[...new Set([result.old, result.new])].map((name) => promoteButton(name, current)),
  );
  byId("changed").replaceChildren(...changedItems(result));
  byId("classes").tBodies[0].replaceChildren(...result.classes.map(classRow));
  announce(byId("verdict").textContent);
}

function sentence(result) {
  const { fixed, broken, p_value: p, changed } = result;
  if (!changed.length) return "Both runs predict the same class for every image.";
  const chance = p < 0.001 ? "p < 0.001" : `p = ${p.toFixed(3)}`;
  const verdict =
    p < 0.05
      ? `This is more than chance (sign test, ${chance}).`
      : `This may be chance (sign test, ${chance}).`;
  return `${fixed} images are now correct that were wrong, ${broken} the other way. ${verdict}`;
}

function promoteButton(name, current) {
  const button = create("button", {
    type: "button", disabled: name === current,
    textContent: name === current ? `${name} is in use` : `Use ${name}`,
  });
  if (name !== current) button.className = "primary";
  button.addEventListener("click", guarded(async () => {
    button.disabled = true;
    const answer = await request("/api/promote", { run: name });
    await showComparison(answer.current);
  }));
  return button;
}

function changedItems({ changed }) {
  if (!changed.length) return [create("li", { textContent: "None." })];
  return changed.slice(0, 200).map(({ id, label, old: before, new: after, image }) => {
    const kind = after === label ? "fixed" : before === label ? "broken" : "other";
    return create(
      "li", { className: kind, title: image },
      crisp(create("img", { alt: "", loading: "lazy", src: imageUrl(id) })),
      create(
        "p", {}, create("b", {}, ...breakable(label)), create("br"), ...breakable(before), " → ",
        ...breakable(after),
      ),
    );
  });
}

function classRow(row) {
  const cell = (text) => create("td", { className: "number", textContent: text });
  const share = (value) => (value === null ? "–" : percent(value, 1));
  const difference = row.old === null ? 0 : row.new - row.old;
  const sign = difference > 0 ? "+" : difference < 0 ? "−" : "";
  return create(
    "tr", {}, create("th", { scope: "row" }, ...breakable(row.class)),
    cell(row.images.toLocaleString()), cell(share(row.old)), cell(share(row.new)),
    cell(row.old === null ? "–" : sign + percent(Math.abs(difference), 1)),
  );
}

const act = (path) => guarded(async () => {
  showStatus(await request(path, {}));
  state = "running";
  await refresh();
});
byId("start").addEventListener("click", act("/api/retrain"));
byId("stop").addEventListener("click", act("/api/retrain/stop"));
byId("resume").addEventListener("click", act("/api/retrain/resume"));
for (const id of ["old", "new"]) {
  byId(id).addEventListener("change", guarded(() => showComparison()));
}
refresh();
