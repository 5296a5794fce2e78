"""Make the golden files with the code of revision 54d96af.

    git clone REPOSITORY old && git -C old checkout 54d96af
    OMP_NUM_THREADS=1 PYTHONPATH=old/src python make_golden.py old WORK

WORK is an empty folder. At the end this folder holds data/, other/, table.csv, recipes/,
commands.json, expected.json and golden.tar.xz, which the tests unpack beside them.

The encoder `tiny` has 240,000 weights, 1 MB. All runs but `default` start from a weights file in
which whole groups of channels are zero. These channels get no gradient and stay zero, so that the
weights and checkpoints compress to a few kilobytes.
"""

import csv
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

HERE = Path(__file__).resolve().parent
COLOURS = {"cross": (70, 160, 90), "disc": (60, 90, 190), "red ring": (190, 60, 60)}

SHORT = ["--epochs", "3", "--batch-size", "8", "--workers", "0", "--device", "cpu", "--no-report"]
SHORT += ["--offline", "--cache", "cache", "--set", "probe.epochs=4", "--set", "probe.views=2"]
SMALL = ["--encoder", "tiny", "--weights", "weights.safetensors", "--set", "data.image_size=16"]
SMALL += ["--set", "data.val_share=0.25", "--set", "data.test_share=0.25"]
SMALL += ["--set", "head.common_dim=12", "--set", "head.style_dim=4", "--set", "head.hidden=16"]
WHOLE, FROZEN = [*SMALL, "--no-frozen", *SHORT], [*SMALL, "--frozen", *SHORT, "--epochs", "8"]
LONGER = ["--set", "probe.epochs=6"]

FINISHED = {
    "default": ["data", "--encoder", "tiny", *SHORT],
    "supcon": ["data", "--method", "supcon", *WHOLE],
    "baseline": ["data", "--method", "baseline", *WHOLE, "--epochs", "20"],
    "paper": ["data", "--method", "scs_supcon@paper", *WHOLE, "--seed", "1"],
    "options": ["data", "--recipe", "recipes/options.toml", *WHOLE],
    "frozen": ["data", *FROZEN],
    "frozen_supcon": ["data", "--method", "supcon", *FROZEN],
    "table": ["table.csv", "--method", "paco", *WHOLE],
}
# The command line, and when the process is stopped: signal, part of a path, count.
UNFINISHED = {
    "stage1_killed": (["data", *WHOLE], (signal.SIGKILL, "pretrain-", 85)),
    "stage1_stopped": (["data", "--method", "paco", *WHOLE], (signal.SIGTERM, "metrics.csv", 2)),
    "stage2_killed": (["data", "--seed", "2", *WHOLE, *LONGER], (signal.SIGKILL, "probe-", 30)),
    "stage2_stopped": (["data", *FROZEN, *LONGER], (signal.SIGTERM, "metrics.csv", 11)),
    "linear_killed": (["data", "--method", "supcon", *WHOLE], (signal.SIGKILL, "linear-", 16)),
}
COMPARE = ["compare", "data", "--methods", "scs_supcon", *SMALL, "--frozen", "--epochs", "2"]
COMPARE += ["--batch-size", "8", "--set", "probe.epochs=2", "--set", "probe.views=1"]
COMPARE += ["--out", "comparisons/data", "--runs", "compared", "--cache", "cache"]
COMPARE += ["--device", "cpu", "--offline"]
TUNE = ["tune", "data", "--out", "tunings/data", "--trials", "2", *SMALL, "--frozen"]
TUNE += ["--epochs", "2", "--batch-size", "8", "--set", "probe.epochs=2", "--set", "probe.views=1"]
TUNE += ["--workers", "0", "--cache", "cache", "--device", "cpu", "--offline"]
LEFT_OUT = ("tensorboard", "figures", "report.html", "comparison.html", ".lock", ".filling")
LEFT_OUT += ("worker.log", "search.png", "search.svg", "search.pdf", ".search.lock")


def draw(folder: Path, names: list[str], count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for name in names:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            noise = rng.integers(120, 256, (16, 16, 3), dtype=np.uint8)
            image = Image.fromarray(noise)
            pen = ImageDraw.Draw(image)
            x, y, r = (int(v) for v in rng.integers((4, 4, 3), (12, 12, 7)))
            drift = rng.integers(-45, 46, 3)
            colour = tuple(int(v) for v in np.array(COLOURS.get(name, (120, 120, 40))) + drift)
            if name == "cross":
                pen.line((x - r, y, x + r, y), colour, 3)
                pen.line((x, y - r, x, y + r), colour, 3)
            elif name == "disc":
                pen.ellipse((x - r, y - r, x + r, y + r), colour)
            elif name == "red ring":
                pen.ellipse((x - r, y - r, x + r, y + r), outline=colour, width=2)
            else:
                pen.rectangle((x - r, y - r, x + r, y + r), colour)
            # JPEG and PNG; a palette keeps them small.
            if number % 3 == 0:
                image.save(folder / name / f"{number:02d}.jpg", quality=60)
            else:
                image.quantize(32).save(folder / name / f"{number:02d}.png", optimize=True)


def make_data() -> None:
    draw(Path("data"), list(COLOURS), 12, seed=0)
    draw(Path("other"), ["cross", "disc", "square"], 4, seed=1)
    # Problems for the data check: a copy, a broken image, a file that is not an image.
    shutil.copyfile("data/disc/01.png", "data/disc/12.png")
    Path("data/cross/12.png").write_bytes(Path("data/cross/01.png").read_bytes()[:200])
    Path("data/notes.txt").write_text("Images drawn for the tests.\n")
    images = sorted(p for p in Path("data").glob("*/*") if p.stem != "12")
    with Path("table.csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["image_path", "label", "split", "group"])
        for number, path in enumerate(images):
            place = number % 12
            split = "train" if place < 8 else "val" if place < 10 else "test"
            rows.writerow([str(path), path.parent.name, split, f"{path.parent.name} {place // 2}"])


def make_weights() -> None:
    """Write weights of `tiny` in which one group of channels per layer is not zero."""
    from safetensors.torch import save_file
    from scs_supcon.encoders import build_encoder

    torch.manual_seed(0)
    body = build_encoder("tiny", small_stem=False, in_size=16).body
    weights = {name: value.clone() for name, value in body.state_dict().items()}
    alive = 3
    for layer in range(4):
        kernel = weights[f"layers.{layer}.0.weight"]
        group = len(kernel) // 8
        kernel[group:] = 0
        kernel[:, alive:] = 0
        for part in ("weight", "bias"):
            weights[f"layers.{layer}.1.{part}"][group:] = 0
        alive = group
    save_file(weights, "weights.safetensors")


RECIPES = {
    "method_only": '[method]\nname = "scs_supcon"\n',
    "no_method": "[pretrain]\nepochs = 3\n",
    "solved": '[method]\nname = "scs_supcon"\npreset = "solved"\n',
    "paper": '[method]\nname = "scs_supcon"\npreset = "paper"\n',
    "siglip": '[method]\nname = "scs_supcon"\npreset = "siglip"\n\n[pretrain]\nepochs = 7\n',
    "options": '[method]\nname = "scs_supcon"\noptions = { t0 = 5.0, pairs = "balanced" }\n\n'
    "[pretrain]\nlr = 0.05\n",
    "preset_and_options": '[method]\nname = "scs_supcon"\npreset = "paper"\n\n[method.options]\n'
    'beta = 0.01\nlearn = ["t"]\nbias = "fixed"\ninclude_self = false\n',
    "supcon": '[method]\nname = "supcon"\noptions = { temperature = 0.2 }\n',
    "everything": "seed = 5\n\n[data]\nimage_size = 16\ncrop_pct = 0.9\ncrop_scale = [0.3, 1.0]\n"
    "flip = false\njitter = 0.1\ngrayscale = 0.0\nrotate = 10.0\nval_share = 0.2\n"
    'test_share = 0.25\nsplit_seed = 3\n\n[encoder]\nname = "tiny"\nweights = "scratch"\n'
    "frozen = false\n\n[head]\ncommon_dim = 24\nstyle_dim = 8\noverlap = 4\nhidden = 32\n"
    'centre = false\n\n[method]\nname = "cs_supcon"\n\n[pretrain]\nepochs = 4\nbatch_size = 12\n'
    'optimizer = "adamw"\nlr = 0.001\nlr_floor = 0.01\nmomentum = 0.8\nweight_decay = 0.01\n'
    'warmup_epochs = 1.0\nclip_norm = 2.0\nbatches = "balanced"\nper_class = 3\nmicro_batch = 6\n'
    "\n[probe]\nepochs = 9\nbatch_size = 16\nlrs = [0.5, 2.0]\nweight_decays = [0.0]\n"
    "plain_lr = 1.5\nmomentum = 0.7\nviews = 3\n",
}


def scs(*arguments: str) -> str:
    line = [sys.executable, "-m", "scs_supcon", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"scs {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def stop(old: Path, arguments: list[str], fate: tuple) -> None:
    """Run a command that saves after every step until it is stopped at the given point."""
    eager = fate[0] == signal.SIGKILL
    request = {"arguments": arguments, "eager": eager, "fate": fate, "folder": "said"}
    Path("said").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, str(old / "tests" / "serve_commands.py")],
        input=json.dumps(request) + "\n", capture_output=True, text=True, check=True,
    )  # fmt: skip
    code = int(done.stdout.split()[-1])
    if code not in (-signal.SIGKILL, 128 + signal.SIGTERM):
        sys.exit(f"{arguments}: not stopped ({code}): {Path('said/err').read_text()}")


def images() -> list[str]:
    from scs_supcon.data.finding import find_pictures  # vocabulary: ok

    broken = ("data/cross/12.png", "data/notes.txt")
    paths = find_pictures(["data", "other"])  # vocabulary: ok
    return [str(p) for p in paths if str(p) not in broken]


def answers(path: Path) -> dict:
    """Return predictions, embeddings and neighbours of the model of a run."""
    from scs_supcon import load

    model = load(path)
    names = images()
    said = model.predict(names, topk=3)
    assert not said.failures
    few = names[:3]
    vectors = model.embed(few)
    facts = model.facts
    return {
        "classes": list(model.classes),
        "readout": facts.readout,  # vocabulary: ok
        "temperature": facts.temperature,
        "sharpness": facts.sharpness,
        "boundary": facts.boundary.model_dump(),
        "predictions": {
            one.name: {
                "label": one.label,
                "probability": one.probability,
                "top": [list(pair) for pair in one.top],
                "unknown": one.none_of_these,  # vocabulary: ok
                "nearest": one.nearest,
                "similarity": one.similarity,
            }
            for one in said.records
        },
        "embeddings": {
            name: {"common": common[:8].tolist(), "style": style[:8].tolist()}
            for name, common, style in zip(few, vectors.common, vectors.style, strict=True)
        },
        "neighbours": [list(one) for one in model.neighbours("other/disc/01.png", 3)],
    }


def run_facts(run: Path) -> dict:
    summary = json.loads((run / "finished.json").read_text())
    evaluation = json.loads((run / "evaluation.json").read_text())
    weights = (run / "model" / "weights.safetensors").read_bytes()
    return {
        "accuracy": summary["accuracy"],
        "judged_on": summary["judged_on"],  # vocabulary: ok
        "test_images": summary["pictures"],  # vocabulary: ok
        "metrics": summary["metrics"],
        "evaluation_scores": evaluation["scores"],
        "own_classifier": any(head["own"] and head["chosen"] for head in summary["bank"]),
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        **answers(run),
    }


def main() -> None:
    old, work = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    work.mkdir(exist_ok=True)
    os.chdir(work)
    os.environ["SCS_CACHE"] = "cache"
    torch.set_num_threads(1)
    make_data()
    make_weights()
    Path("recipes").mkdir()
    for name, text in RECIPES.items():
        Path(f"recipes/{name}.toml").write_text(text)
    finished = {n: ["train", *line, "--out", f"runs/{n}"] for n, line in FINISHED.items()}
    unfinished = {
        n: ["train", *line, "--out", f"unfinished/{n}"] for n, (line, _) in UNFINISHED.items()
    }
    expected: dict = {"revision": "54d96af"}
    expected |= finish(finished)
    expected["unfinished"] = {
        name: leave(old, line, Path("unfinished") / name, UNFINISHED[name][1])
        for name, line in unfinished.items()
    }
    expected |= search_and_compare()
    for name in RECIPES:
        line = ["train", "data", "--recipe", f"recipes/{name}.toml", "--device", "cpu"]
        Path(f"recipes/resolved_{name}.toml").write_text(scs(*line, "--print-recipe"))
    commands = {"finished": finished, "unfinished": unfinished, "compare": COMPARE, "tune": TUNE}
    pack(commands, expected)


def finish(lines: dict[str, list[str]]) -> dict:
    """Make finished runs, evaluations on other data, an export, and a model with a new class."""
    from scs_supcon import load

    for name, line in lines.items():
        print(name, scs(*line).splitlines()[0], flush=True)
    evaluated = {}
    for name in ("default", "frozen"):
        scs("evaluate", f"runs/{name}", "other", "--workers", "0")
        record = json.loads(Path(f"runs/{name}/evaluations/other.json").read_text())
        evaluated[name] = record["scores"]
    scs("export", "runs/supcon", "--onnx", "-o", "exported/supcon.onnx")
    added = load("runs/options")
    added.add_class("square", sorted(str(p) for p in Path("other/square").iterdir()))
    added.save("models/added_class")
    environment = json.loads(Path("runs/default/environment.json").read_text())
    return {
        "cpu": environment["cpu"],
        "libraries": environment["libraries"],
        "finished": {name: run_facts(Path("runs") / name) for name in lines},
        "models": {"added_class": answers(Path("models/added_class"))},
        "evaluated": evaluated,
    }


def leave(old: Path, line: list[str], run: Path, fate: tuple) -> dict:
    """Make an unfinished run, and return the results of resuming a copy of it."""
    stop(old, line, fate)
    saved = sorted((run / "checkpoints").glob("*.json"), key=lambda p: p.stem[-6:])
    state = json.loads(saved[-1].read_text())["state"]
    names = [p.stem for p in saved]
    for folder in (run, Path("cache")):
        shutil.copytree(folder, f"{folder}-before")
    scs(*line)
    results = {
        "checkpoints": names,
        "progress": state["training"]["progress"],
        "metrics_bytes": state["metrics_bytes"],
        "metrics_sha256": hashlib.sha256((run / "metrics.csv").read_bytes()).hexdigest(),
        **run_facts(run),
    }
    for folder in (run, Path("cache")):
        shutil.rmtree(folder)
        shutil.move(f"{folder}-before", folder)
    print(run, names, results["progress"], flush=True)
    return results


def search_and_compare() -> dict:
    """Make a comparison of two methods and a study of two trials."""
    scs(*COMPARE)
    scs(*TUNE)
    with Path("comparisons/data/results.csv").open(newline="") as file:
        compared = {
            row["method"]: {"run": row["run"], "accuracy": float(row["accuracy"])}
            for row in csv.DictReader(file)
        }
    with Path("tunings/data/trials.csv").open(newline="") as file:
        trials = list(csv.DictReader(file))
    features = sorted(str(p) for p in Path("cache").rglob("*.safetensors"))
    return {"compared": compared, "trials": trials, "features": features}


def pack(commands: dict, expected: dict) -> None:
    for name in ("data", "other", "recipes"):
        shutil.rmtree(HERE / name, ignore_errors=True)
        shutil.copytree(name, HERE / name)
    shutil.copyfile("table.csv", HERE / "table.csv")
    (HERE / "commands.json").write_text(json.dumps(commands, indent=1) + "\n")
    (HERE / "expected.json").write_text(json.dumps(expected) + "\n")

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = Path(info.name).name
        finished = not info.name.startswith(("unfinished", "runs/frozen/"))
        if name in LEFT_OUT or name.endswith(".lock") or (finished and name == "checkpoints"):
            return None
        info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
        return info

    with tarfile.open(HERE / "golden.tar.xz", "w:xz", preset=9) as archive:
        names = "weights.safetensors runs unfinished models exported cache compared comparisons"
        for name in (*names.split(), "tunings"):
            archive.add(name, filter=plain)


if __name__ == "__main__":
    main()
