"""Mutated images of every format through doctor, train and predict."""

import io
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from .outcome import Outcome, call

SIDE = 16
PER_FOLDER = 100  # mutated images that a command reads at a time


def samples() -> dict[str, bytes]:
    """Return small intact images of every format and mode that is read, by name."""
    noise = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 4), dtype=np.uint8)
    rgb = Image.fromarray(noise[..., :3])
    rgba = Image.fromarray(noise)
    deep = Image.fromarray(noise[..., :2].copy().view(np.uint16)[..., 0])
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "x" * 500
    profile = {"icc_profile": b"\0\0\x02\x0clcms" + bytes(500)}
    frames = {"save_all": True, "append_images": [rgb.rotate(90), rgb.rotate(180)]}
    images = {
        "plain.jpg": _save(rgb, "JPEG"),
        "exif.jpg": _save(rgb, "JPEG", exif=exif, **profile),
        "progressive.jpg": _save(rgb, "JPEG", progressive=True),
        "cmyk.jpg": _save(rgb.convert("CMYK"), "JPEG"),
        "grey.jpg": _save(rgb.convert("L"), "JPEG"),
        "plain.png": _save(rgb, "PNG"),
        "alpha.png": _save(rgba, "PNG", exif=exif, **profile),
        "palette.png": _save(rgb.convert("P"), "PNG", transparency=3),
        "deep.png": _save(deep, "PNG"),
        "bits.png": _save(rgb.convert("1"), "PNG"),
        "animated.png": _save(rgb, "PNG", **frames),
        "plain.bmp": _save(rgb, "BMP"),
        "plain.tif": _save(rgb, "TIFF"),
        "packed.tif": _save(rgba, "TIFF", compression="tiff_lzw"),
        "float.tif": _save(Image.fromarray(noise[..., 0].astype(np.float32)), "TIFF"),
        "plain.gif": _save(rgb.convert("P"), "GIF"),
        "animated.gif": _save(rgb, "GIF", **frames),
        "plain.webp": _save(rgb, "WEBP"),
        "animated.webp": _save(rgba, "WEBP", **frames),
    }
    return images


def mutated(chance: random.Random, content: bytes) -> bytes:
    """Return an image with a few changed bytes, a missing or a repeated part, or another size."""
    data = bytearray(content)
    kind = chance.randrange(6)
    if kind == 0:  # truncated
        return bytes(data[: chance.randrange(len(data))])
    if kind == 1:  # a part is missing
        start = chance.randrange(len(data))
        del data[start : start + chance.randint(1, 40)]
    elif kind == 2:  # a part is repeated
        start = chance.randrange(len(data))
        data[start:start] = data[start : start + chance.randint(1, 60)] * chance.randint(1, 20)
    elif kind == 3:  # the header, where sizes are
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(min(64, len(data)))] = chance.choice((0, 1, 127, 128, 255))
    else:
        for _ in range(chance.randint(1, 20)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def images(seed: int, count: int, folder: Path, run: Path) -> Iterator[Outcome]:
    """Read mutated images with `doctor`, `predict` and `train`; `run` is a finished run."""
    chance = random.Random(seed)
    for number, batch in enumerate(_folders(chance, count, folder)):
        files = sorted((batch / "a").iterdir()) + sorted((batch / "b").iterdir())
        problems = []
        for command in _commands(batch, run, folder, train=number % 3 == 0):
            if problem := call(*command).problem:
                kept = folder / "lost" / f"{seed}-{number}"
                shutil.copytree(batch, kept, dirs_exist_ok=True)
                problems.append(f"{command[0]}: {problem} (images: {kept})")
        yield Outcome(len(files), correct=len(files) - len(problems), problems=tuple(problems))
        shutil.rmtree(batch)


def _folders(chance: random.Random, count: int, folder: Path) -> Iterator[Path]:
    """Yield folders of two classes of mutated images, and some intact ones to train on."""
    originals = samples()
    for start in range(0, count, PER_FOLDER):
        batch = folder / f"batch{start}"
        for label in ("a", "b"):
            (batch / label).mkdir(parents=True)
        for number in range(min(PER_FOLDER, count - start)):
            name = chance.choice(sorted(originals))
            label = chance.choice("ab")
            content = mutated(chance, originals[name])
            (batch / label / f"{number:03d}{Path(name).suffix}").write_bytes(content)
        for number in range(8):
            pixels = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
            label = "ab"[number % 2]
            (batch / label / f"ok{number}.png").write_bytes(_save(Image.fromarray(pixels), "PNG"))
        yield batch


def _commands(batch: Path, run: Path, folder: Path, *, train: bool) -> Iterator[tuple[str, ...]]:
    table = str(folder / "problems.csv")
    yield ("doctor", str(batch), "--out", table, "--quiet", "--workers", "1")
    yield ("predict", str(run), str(batch), "--quiet", "-o", str(folder / "names.csv"))
    if train:
        quick = ("--epochs", "1", "--batch-size", "64", "--workers", "0", "--device", "cpu")
        small = ("--encoder", "tiny", "--from-scratch", "--method", "supcon", "--no-report")
        probe = ("--set", "probe.epochs=1", "--set", "probe.views=1", "--set", "data.image_size=16")
        out = ("--out", str(folder / "run"), "--overwrite", "--quiet")
        yield ("train", str(batch), *quick, *small, *probe, *out)


def _save(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()
