"""Damaged model directories, runs, recipes and tables through the command line."""

import csv
import hashlib
import io
import json
import random
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tomli_w

from .outcome import Called, Outcome, attempt, call

DEEP: Any = []
for _ in range(2000):
    DEEP = [DEEP]
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**31, 2**63, 10**400, 1e308, -1e308, float("nan"), float("inf")),
    *("", "x", "\x1b[2J", "\u202eabc", "../../etc/passwd", "os:system", "x" * 5000, "=1+1"),
    *([], {}, [1], [[]], {"x": 1}, [None] * 3, "1", "nan", 0.5, 65536, 4096),
)


INSERTED = (b"[" * 20_000, b"\xff\xfe", b"9" * 6000, b"\0", b"{}")


def files(seed: int, count: int, folder: Path, run: Path, image: Path) -> Iterator[Outcome]:
    """Damage copies of a finished run, recipes and tables, and read them with a command."""
    chance = random.Random(seed)
    attempts = attempts_of(chance, count, folder, run, image)
    for number, (name, command, check) in enumerate(attempts):
        result = call(*command)
        problem = result.problem or check(result)
        if problem:
            kept = folder / "lost" / f"{seed}-{number}"
            shutil.copytree(folder / "work", kept, dirs_exist_ok=True, symlinks=True)
            problem = f"{name}: {' '.join(command[:2])}: {problem} (files: {kept})"
        yield attempt(result.code, problem)


def processes(seed: int, count: int, folder: Path, run: Path, image: Path) -> Iterator[Outcome]:
    """The same with a process of its own for each command, whose memory is limited."""
    chance = random.Random(seed)
    for name, command, check in attempts_of(chance, count, folder, run, image):
        code = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))\n"
        code += "from scs_supcon.__main__ import main; main()"
        try:
            done = subprocess.run(
                [sys.executable, "-c", code, *command],
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            yield attempt(1, f"{name}: {command[0]}: no result after 300 s")
            continue
        result = Called(done.returncode, done.stdout, done.stderr)
        problem = result.problem or check(result)
        if done.returncode < 0:
            problem = f"ended by signal {-done.returncode}"
        yield attempt(done.returncode, f"{name}: {problem}" if problem else "")


Attempt = tuple[str, tuple[str, ...], Callable[[Called], str]]


def attempts_of(
    chance: random.Random, count: int, folder: Path, run: Path, image: Path
) -> Iterator[Attempt]:
    """Yield a name, a command and a check of its result, after damaging a copy of its files."""
    work = folder / "work"
    expected = call("predict", str(run), str(image), "--quiet", "--format", "jsonl").out
    kinds = (_model_bytes, _model_values, _run_values, _recipe, _table, _comparison)
    for number in range(count):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        yield kinds[number % len(kinds)](chance, work, run, image, expected)


def _model_bytes(chance: random.Random, work: Path, run: Path, image: Path, want: str) -> Attempt:
    """Change bytes of a model, remove a file, or replace it by something else."""
    model = work / "model"
    shutil.copytree(run / "model", model)
    file = model / chance.choice(("weights.safetensors", "model.json", "SHA256SUMS"))
    kind = chance.randrange(5)
    if kind == 0:
        file.unlink()
    elif kind == 1:
        file.unlink()
        file.symlink_to(chance.choice(("/dev/zero", "/dev/null", str(file), "/")))
    else:
        file.write_bytes(damaged(chance, file.read_bytes()))

    def check(result: Called) -> str:
        return "" if result.code or result.out == want else "a silently different result"

    return f"{file.name} bytes", ("predict", str(model), str(image), *JSONL), check


JSONL = ("--quiet", "--format", "jsonl")


def _model_values(chance: random.Random, work: Path, run: Path, image: Path, want: str) -> Attempt:
    """Change values of model.json, or the header of the weights, with correct checksums."""
    model = work / "model"
    shutil.copytree(run / "model", model)
    info, weights = model / "model.json", model / "weights.safetensors"
    if chance.random() < 0.7:
        document = json.loads(info.read_text())
        name = change(chance, document)
        info.write_text(as_json(document))
    else:
        name = "header"
        weights.write_bytes(_with_header(chance, weights.read_bytes()))
    sums = (
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
        for file in (weights, info)
    )
    (model / "SHA256SUMS").write_text("".join(sums))
    return f"model.json {name}", ("predict", str(model), str(image), *JSONL), _accept


def _run_values(chance: random.Random, work: Path, run: Path, image: Path, want: str) -> Attempt:
    """Change values of the records of a finished run."""
    copy = work / "runs" / "x"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints", "tensorboard", "model"))
    name = chance.choice(("evaluation.json", "finished.json", "environment.json", "recipe.toml"))
    file = copy / name
    if chance.random() < 0.3:
        file.write_bytes(damaged(chance, file.read_bytes()))
        key = "bytes"
    elif name.endswith("json"):
        document = json.loads(file.read_text())
        key = change(chance, document)
        file.write_text(as_json(document))
    else:
        values = tomllib.loads(file.read_text())
        key = change(chance, values)
        file.write_text(_toml(chance, values))
    commands = {
        "evaluation.json": ("evaluate", str(copy)),
        "finished.json": ("runs", str(work / "runs")),
        "environment.json": ("runs", str(work / "runs"), "--json"),
        "recipe.toml": ("runs", str(work / "runs")),
    }
    others = {0: ("report", str(copy)), 1: ("diff", str(copy), str(run))}  # reports are slow
    return f"{name} {key}", others.get(chance.randrange(10), commands[name]), _accept


def _recipe(chance: random.Random, work: Path, run: Path, image: Path, want: str) -> Attempt:
    """Change values or bytes of a recipe."""
    file = work / "recipe.toml"
    text = (run / "recipe.toml").read_text()
    if chance.random() < 0.3:
        file.write_bytes(damaged(chance, text.encode()))
        key = "bytes"
    else:
        values = tomllib.loads(text)
        key = change(chance, values)
        file.write_text(_toml(chance, values))
    command = ("train", "shapes", "--recipe", str(file), "--print-recipe", "--device", "cpu")
    return f"recipe {key}", command, _accept


def _table(chance: random.Random, work: Path, run: Path, image: Path, want: str) -> Attempt:
    """Change cells, columns or bytes of a table of images."""
    for number in range(6):
        shutil.copy(image, work / f"{number}.png")
    rows = [["image_path", "label", "split", "fold", "group"]]
    rows += [[f"{n}.png", "ab"[n % 2], "train", str(n % 3), f"g{n}"] for n in range(6)]
    for _ in range(chance.randint(1, 3)):
        row = chance.choice(rows)
        cell = chance.choice((*VALUES, "test", "1e30", "a\0b", "\n", ";", "\t", "-1"))
        row[chance.randrange(len(row))] = str(cell)[:6000]
    if chance.random() < 0.2:
        for row in rows[1:]:
            row[2] = "test"
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    content = text.getvalue().encode("utf-8", "surrogatepass")
    content = damaged(chance, content) if chance.random() < 0.3 else content
    table = work / "table.csv"
    table.write_bytes(content)
    if chance.random() < 0.5:
        options = ("--print-recipe", "--device", "cpu", "--encoder", "tiny", "--from-scratch")
        return "table", ("train", str(table), *options), _accept
    return "table", ("doctor", str(table), "--out", str(work / "p.csv"), "--quiet"), _accept


def _comparison(chance: random.Random, work: Path, run: Path, image: Path, want: str) -> Attempt:
    """Change the table of a comparison."""
    values: dict[str, Any] = {
        "methods": ["supcon", {"method": "scs_supcon", "name": "x", "settings": ["seed=1"]}],
        "seeds": 1,
        "settings": ["pretrain.epochs=1"],
        "columns": [{"data": "shapes", "encoder": "tiny", "from_scratch": True}],
    }
    key = change(chance, values)
    file = work / "table.toml"
    file.write_text(_toml(chance, values))
    if chance.random() < 0.3:
        file.write_bytes(damaged(chance, file.read_bytes()))
    command = ("compare", str(file), "--dry-run", "--out", str(work / "out"))
    runs = ("--runs", str(work / "runs"))
    return f"comparison {key}", (*command, *runs, "--device", "cpu", "--quiet"), _accept


def _accept(_result: Called) -> str:
    return ""


def damaged(chance: random.Random, content: bytes) -> bytes:
    """Return content with changed, missing or additional bytes."""
    data = bytearray(content)
    kind = chance.randrange(4)
    if kind == 0 or not data:
        return bytes(data[: chance.randrange(len(data) + 1)])
    for _ in range(chance.randint(1, 8)):
        start = chance.randrange(max(1, len(data)))
        if kind == 1:
            data[start : start + 1] = bytes([chance.randrange(256)])
        elif kind == 2:
            del data[start : start + chance.randint(1, 30)]
        else:
            data[start:start] = chance.choice(
                (b"[" * 20_000, b"\xff\xfe", b"9" * 6000, b"\0", b"{}")
            )
    return bytes(data)


def change(chance: random.Random, document: Any) -> str:
    """Replace, remove or add a random value of nested tables in place; return its key."""
    target, path = document, []
    while True:
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        if not keys:
            return ".".join(map(str, path))
        key = chance.choice(keys)
        path.append(key)
        inner = target[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.75:
            target = inner
            continue
        kind = chance.random()
        if kind < 0.2:
            del target[key]
        elif kind < 0.25:
            target[key] = DEEP
        else:
            target[key] = chance.choice(VALUES)
        return ".".join(map(str, path))[:80]


def as_json(document: Any) -> str:
    """Return JSON; values that are nested too deep for the writer are written by hand."""
    return json.dumps(_shallow(document)).replace('"DEEP"', "[" * 20_000)


def _toml(chance: random.Random, values: dict[str, Any]) -> str:
    shallow = _without_none(_shallow(values))
    text = tomli_w.dumps(shallow)
    text = text.replace('"DEEP"', "[" * 3000)
    return text + ("\n" + "a." * 3000 + "b = 1\n" if chance.random() < 0.02 else "")


def _shallow(value: Any) -> Any:
    if value is DEEP:
        return "DEEP"
    if isinstance(value, dict):
        return {key: _shallow(item) for key, item in value.items()}
    return [_shallow(item) for item in value] if isinstance(value, list) else value


def _without_none(value: Any) -> Any:
    """Return values that TOML can express."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value if item is not None]
    return value


def _with_header(chance: random.Random, content: bytes) -> bytes:
    """Return safetensors content with another header: shapes, types, offsets, or a wrong length."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    kind = chance.randrange(4)
    if kind == 0:
        return (
            chance.choice((2**63, 2**40, 0, length + 1, length - 1)).to_bytes(8, "little")
            + content[8:]
        )
    name = chance.choice([key for key in header if key != "__metadata__"])
    if kind == 1:
        header[name]["dtype"] = chance.choice(("F8_E4M3", "C64", "BOOL", "I64", "F16", "X", ""))
    elif kind == 2:
        header[name]["shape"] = chance.choice(([], [2**40], [0], [1, 2], [-1], ["a"]))
    else:
        del header[name]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    body = bytearray(content[8 + length :])
    if chance.random() < 0.3:  # NaN somewhere in the weights
        start = chance.randrange(max(1, len(body) - 4)) // 4 * 4
        body[start : start + 4] = b"\x00\x00\xc0\x7f"
    return len(text).to_bytes(8, "little") + text + bytes(body)
