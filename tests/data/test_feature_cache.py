import hashlib
import itertools
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import psutil
import pytest
import safetensors
import safetensors.numpy
import torch
from torch import Tensor, nn

import scs_supcon.data.feature_cache as cache_module
import scs_supcon.nn.encode as encode_module
from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.feature_cache import SHARD_ROWS, frozen_features, keyed_views
from scs_supcon.data.load import load_images
from scs_supcon.data.shards import FORMAT_VERSION, lock_for_writing, read_shards, write_shard
from scs_supcon.data.transforms import seeded
from scs_supcon.errors import UserError
from scs_supcon.io.atomic import replacing
from scs_supcon.nn.encoder import build_encoder
from scs_supcon.recipe import DataRecipe

DATA = DataRecipe(source="anywhere", image_size=8, mean=(0.5,) * 3, std=(0.25,) * 3)
Folders = Callable[[dict[str, int]], Path]


class Small(nn.Module):
    """A fast encoder with batch normalisation that counts its forward passes."""

    num_features = 6

    def __init__(self) -> None:
        super().__init__()
        with seeded(3):
            self.net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
        self.passes = [0]  # deep copies of the module share it

    def __deepcopy__(self, memo: dict[int, object]) -> "Small":
        clone = Small()
        clone.load_state_dict(self.state_dict())
        clone.passes = self.passes
        return clone

    def forward(self, images: Tensor) -> Tensor:
        self.passes[0] += 1
        return self.net(images).mean(dim=(2, 3))


def extract(images: ImageDataset, cache: Path, **changes: object) -> np.ndarray:
    options: dict[str, object] = {
        "indices": range(len(images)),
        "encoder": Small(),
        "encoder_key": "small",
        "transforms": keyed_views("train", DATA, 3),
        "cache_dir": cache,
    }
    return frozen_features(images, **(options | changes))  # type: ignore[arg-type]


@pytest.fixture
def birds(class_folders: Folders) -> ImageDataset:
    return load_images(class_folders({"birds/finch": 30, "birds/wren": 25}) / "birds")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def shards(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in cache.glob("*/*.safetensors")}


def test_features_match_a_plain_loop(birds: ImageDataset, cache: Path) -> None:
    views = [*keyed_views("train", DATA, 2), *keyed_views("eval", DATA)]
    encoder = Small().eval()
    expected = []
    for index in range(len(birds)):
        for key, view in views:
            content = bytes.fromhex(birds.file_hash(index))
            number = int.from_bytes(hashlib.sha256(key.encode() + content).digest(), "little")
            with seeded(number), torch.no_grad():
                expected.append(encoder(view(birds.open(index))[None])[0].numpy())
    features = extract(birds, cache, transforms=views)
    assert features.dtype == np.float32
    assert features.shape == (55, 3, 6)
    np.testing.assert_allclose(features.reshape(-1, 6), expected, rtol=1e-5, atol=1e-6)


def test_a_second_call_computes_nothing(birds: ImageDataset, cache: Path) -> None:
    first = extract(birds, cache)
    encoder, progress = Small(), []
    again = extract(birds, cache, encoder=encoder, progress=lambda *now: progress.append(now))
    assert encoder.passes == [0]
    assert progress == [(165, 165)]
    assert np.array_equal(first, again)


def test_progress_starts_with_the_cached_rows(birds: ImageDataset, cache: Path) -> None:
    progress: list[tuple[int, int]] = []
    extract(birds, cache, indices=range(10))
    extract(birds, cache, progress=lambda *now: progress.append(now))
    assert progress[0] == (30, 165)
    assert progress[-1] == (165, 165)
    assert all(SHARD_ROWS >= b[0] - a[0] > 0 for a, b in itertools.pairwise(progress))


def test_only_added_images_and_views_are_computed(birds: ImageDataset, cache: Path) -> None:
    first = extract(birds, cache, indices=range(40), transforms=keyed_views("train", DATA, 2))
    before = shards(cache)
    more = extract(birds, cache)
    assert np.array_equal(more[:40, :2], first)
    added = shards(cache).keys() - before.keys()
    assert before.items() <= shards(cache).items()
    assert sum(len(shards(cache)[name]) for name in added) < 4 * (40 + 15 * 3) * 6 + 15000
    fresh = extract(birds, cache.with_name("other"))
    np.testing.assert_allclose(more, fresh, rtol=1e-6, atol=1e-6)


def test_rows_depend_on_content_not_on_names(
    birds: ImageDataset, cache: Path, tmp_path: Path
) -> None:
    first = extract(birds, cache)
    shutil.copytree(tmp_path / "birds" / "wren", tmp_path / "moved" / "zebra")
    (tmp_path / "moved" / "zebra" / "000.png").rename(tmp_path / "moved" / "zebra" / "zzz.png")
    moved, encoder = load_images(tmp_path / "moved"), Small()
    features = extract(moved, cache, encoder=encoder)
    assert encoder.passes == [0]
    assert np.array_equal(features, np.roll(first[30:], -1, axis=0))


def test_indices_may_repeat_in_any_order(birds: ImageDataset, cache: Path, tmp_path: Path) -> None:
    features = extract(birds, cache)
    indices = [7, 3, 7, 54]
    assert np.array_equal(extract(birds, cache, indices=indices), features[indices])
    assert np.array_equal(extract(birds, tmp_path / "new", indices=indices), features[indices])
    assert extract(birds, cache, indices=[]).shape == (0, 3, 6)


def test_workers_and_threads_do_not_change_the_result(birds: ImageDataset, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    reference = extract(birds, tmp_path / "0")
    for workers in (1, 2):
        assert np.array_equal(extract(birds, tmp_path / f"{workers}", workers=workers), reference)
    try:
        torch.set_num_threads(2)
        assert np.array_equal(extract(birds, tmp_path / "threads"), reference)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_spawned_workers_return_the_same_features(
    birds: ImageDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spawned workers, as on macOS and Windows, receive the dataset and the encoder by pickling."""
    with seeded(0):
        encoder = build_encoder("tiny", small_stem=False, in_size=8)
    reference = extract(birds, tmp_path / "main", encoder=encoder)
    monkeypatch.setattr(cache_module, "worker_context", lambda workers: "spawn")
    features = extract(birds, tmp_path / "spawn", encoder=encoder, workers=1)
    assert np.array_equal(features, reference)


@pytest.mark.parametrize("workers", [0, 2])
def test_encoding_in_the_main_process_returns_the_same_features(
    birds: ImageDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    reference = extract(birds, tmp_path / "workers")
    for module in (cache_module, encode_module):
        monkeypatch.setattr(module, "on_cpu", lambda encoder: False)
    encoder = Small()
    features = extract(birds, tmp_path / "main", encoder=encoder, workers=workers)
    assert encoder.passes == [2]
    np.testing.assert_allclose(features, reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_random_state_of_the_run_is_neither_used_nor_changed(
    birds: ImageDataset, tmp_path: Path, workers: int
) -> None:
    torch.manual_seed(1)
    features = extract(birds, tmp_path / "1", workers=workers)
    state = torch.random.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    assert np.array_equal(extract(birds, tmp_path / "2", workers=workers), features)


def test_views_are_different_and_depend_on_the_seed(birds: ImageDataset, cache: Path) -> None:
    features = extract(birds, cache)
    assert len(np.unique(features.reshape(-1, 6), axis=0)) == 165
    other = extract(birds, cache, transforms=keyed_views("train", DATA, 3, seed=1))
    assert not np.isclose(features, other).all(axis=2).any()


def test_another_encoder_or_view_does_not_share_rows(birds: ImageDataset, cache: Path) -> None:
    extract(birds, cache)
    for change in (
        {"encoder_key": "smaller"},
        {"transforms": keyed_views("probe", DATA, 3)},
        {"transforms": keyed_views("train", DATA.model_copy(update={"jitter": 0.1}), 3)},
    ):
        progress: list[tuple[int, int]] = []
        extract(
            birds, cache, progress=lambda *now, progress=progress: progress.append(now), **change
        )
        assert progress[0] == (0, 165)


def test_keys_contain_exactly_the_settings_of_the_view() -> None:
    def key(kind: str, **changes: object) -> str:
        return keyed_views(kind, DATA.model_copy(update=changes))[0][0]  # type: ignore[arg-type]

    for change in ({"source": "elsewhere"}, {"val_share": 0.3}, {"test_share": 0.3}):
        assert key("train", **change) == key("train")
    everywhere = ({"image_size": 16}, {"mean": (0.0,) * 3}, {"std": (1.0,) * 3})
    random = ({"crop_scale": (0.5, 1.0)}, {"flip": False})
    colours = (
        {"jitter": 0.0},
        {"grayscale": 0.0},
        {"rotate": 5.0},
        {"augment": "rand"},
        {"blur": (0.5,)},
        {"solarize": (0.0, 0.2)},
    )
    for kind, changes in {
        "eval": (*everywhere, {"crop_pct": 0.5}),
        "probe": (*everywhere, *random),
        "train": (*everywhere, *random, *colours, {"interpolation": "bicubic"}),
    }.items():
        assert all(key(kind, **change) != key(kind) for change in changes)
    assert key("eval", jitter=0.0) == key("eval")
    assert key("probe", augment="rand") == key("probe")
    added = ("augment", "blur", "solarize")
    assert not any(name in key("train") for name in added), "features of earlier versions are used"
    views = keyed_views("train", DATA.model_copy(update={"blur": (1.0, 0.1)}), 3)
    assert [view.blur for _, view in views] == [(1.0,), (0.1,), (1.0,)]
    assert keyed_views("train", DATA, 4)[:2] != keyed_views("train", DATA, 2, seed=1)
    keys = [key for key, _ in keyed_views("train", DATA, 4)]
    assert len(set(keys)) == 4
    assert keys[:2] == [key for key, _ in keyed_views("train", DATA, 2)]


def test_two_views_with_the_same_key_are_an_error(birds: ImageDataset, cache: Path) -> None:
    with pytest.raises(ValueError, match="same key"):
        extract(birds, cache, transforms=keyed_views("eval", DATA) * 2)


def test_a_damaged_shard_is_computed_again_with_the_same_bits(
    birds: ImageDataset, cache: Path
) -> None:
    features, before = extract(birds, cache), shards(cache)
    assert len(before) == 2
    for path in cache.glob("*/*.safetensors"):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        assert np.array_equal(extract(birds, cache), features)
        assert shards(cache) == before


def test_the_encoder_is_not_changed(birds: ImageDataset, cache: Path) -> None:
    encoder = Small().train()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    extract(birds, cache, encoder=encoder)
    assert encoder.training
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert tensor.is_contiguous()  # safetensors accepts no other layout


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_image_is_an_error_and_finished_shards_stay(
    birds: ImageDataset, cache: Path, tmp_path: Path, workers: int
) -> None:
    good = (tmp_path / "birds" / "wren" / "024.png").read_bytes()
    (tmp_path / "birds" / "wren" / "024.png").write_bytes(good[:60])
    others = set(multiprocessing.active_children())  # of other tests
    with pytest.raises(UserError, match=r"wren.024\.png") as error:
        extract(birds, cache, workers=workers)
    assert "Traceback" not in str(error.value)
    for worker in set(multiprocessing.active_children()) - others:
        worker.join(60)
        assert not worker.is_alive(), "no worker is left"
    assert len(shards(cache)) == 1
    (tmp_path / "birds" / "wren" / "024.png").write_bytes(good)
    assert np.array_equal(extract(birds, cache), extract(birds, tmp_path / "fresh"))


def test_a_killed_worker_is_an_error_with_advice(birds: ImageDataset, cache: Path) -> None:
    main = os.getpid()

    def die(index: int, at_least: int = 0, sha256: str = "") -> NoReturn:
        assert os.getpid() != main
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    with pytest.raises(UserError, match=r"was killed.*fewer --workers"):
        extract(replace(birds, open=die), cache, workers=2)


def test_features_that_are_not_finite_are_an_error_and_not_cached(
    birds: ImageDataset, cache: Path
) -> None:
    encoder = Small()
    nn.init.constant_(encoder.net[0].weight, float("nan"))
    with pytest.raises(UserError, match=r"not finite for finch.000\.png"):
        extract(birds, cache, encoder=encoder)
    assert not shards(cache)


def test_an_exception_from_progress_stops_the_work_and_finished_shards_stay(
    birds: ImageDataset, cache: Path
) -> None:
    def stop(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(birds, cache, workers=2, progress=stop)
    assert len(shards(cache)) == 1


SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np
import torch
from scs_supcon.recipe import DataRecipe
from scs_supcon.data.feature_cache import frozen_features, keyed_views
from scs_supcon.data.load import load_images
from scs_supcon.nn.encoder import build_encoder
from scs_supcon.nn.encoder import encoder_key

source, cache, out, pause = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(0)
encoder = build_encoder("tiny", small_stem=False, in_size=8)
data = DataRecipe(source=source, image_size=8)

def progress(done, total):
    print(done, flush=True)
    time.sleep(float(pause))

images = load_images(source)
features = frozen_features(
    images, range(len(images)), encoder=encoder, encoder_key=encoder_key(encoder),
    transforms=keyed_views("train", data, 32), cache_dir=cache, workers=2, progress=progress,
)
Path(out).write_bytes(features.tobytes())
"""


def start(source: Path, cache: Path, out: Path, pause: float = 0) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SCRIPT, str(source), str(cache), str(out), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_repeated_kills_do_not_change_the_result(class_folders: Folders, tmp_path: Path) -> None:
    source = class_folders({"birds/finch": 12, "birds/wren": 13}) / "birds"
    assert (
        start(source, tmp_path / "uninterrupted", tmp_path / "uninterrupted.bin").wait(timeout=200)
        == 0
    )
    cached = 0
    for lines, delay in ((1, 0.0), (2, 0.01), (2, 0.05)):
        run = start(source, tmp_path / "killed", tmp_path / "killed.bin", pause=0.1)
        assert run.stdout is not None
        for _ in range(lines):
            done = int(run.stdout.readline())
        assert done >= cached  # rows cached before the kill are still there
        cached = done
        time.sleep(delay)
        workers = psutil.Process(run.pid).children()
        run.kill()
        run.wait(timeout=60)
        assert not psutil.wait_procs(workers, timeout=60)[1]  # no worker is left
        assert not (tmp_path / "killed.bin").exists()
    assert start(source, tmp_path / "killed", tmp_path / "killed.bin").wait(timeout=200) == 0
    assert (tmp_path / "killed.bin").read_bytes() == (tmp_path / "uninterrupted.bin").read_bytes()
    assert shards(tmp_path / "killed") == shards(tmp_path / "uninterrupted")


@pytest.mark.slow
def test_two_processes_can_fill_one_cache(class_folders: Folders, tmp_path: Path) -> None:
    source = class_folders({"birds/finch": 12, "birds/wren": 13}) / "birds"
    outs = [tmp_path / "1.bin", tmp_path / "2.bin"]
    runs = [start(source, tmp_path / "cache", out, pause=0.05) for out in outs]
    assert [run.wait(timeout=200) for run in runs] == [0, 0]
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert not list((tmp_path / "cache").glob("*/*.tmp"))


WIDTH = 5


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def rows(images: str, views: str) -> np.ndarray:
    """Return features that encode their image and view."""
    values = [[[ord(p), ord(v), 0, 0, 0] for v in views] for p in images]
    return np.array(values, dtype=np.float32)


def write(folder: Path, images: str, views: str) -> None:
    write_shard(folder, list(map(digest, images)), list(map(digest, views)), rows(images, views))


def read(folder: Path, images: str, views: str) -> tuple[np.ndarray, np.ndarray]:
    table = np.full((len(images), len(views), WIDTH), -1, dtype=np.float32)
    filled = read_shards(
        folder,
        {digest(name): row for row, name in enumerate(images)},
        {digest(name): column for column, name in enumerate(views)},
        table,
    )
    return filled, table


def test_rows_are_read_from_any_shard(tmp_path: Path) -> None:
    write(tmp_path, "abc", "xy")
    write(tmp_path, "cd", "yz")
    filled, table = read(tmp_path, "dbca", "zy")
    assert filled.tolist() == [[True, True], [False, True], [True, True], [False, True]]
    assert np.array_equal(table[filled], rows("dbca", "zy")[filled])
    assert (table[~filled] == -1).all()


def test_a_missing_folder_is_an_empty_cache(tmp_path: Path) -> None:
    assert not read(tmp_path / "absent", "ab", "x")[0].any()
    assert read(tmp_path, "", "x")[0].shape == (0, 1)


@pytest.mark.parametrize("location", ["header", "images", "features", "end"])
def test_a_changed_byte_is_detected(tmp_path: Path, location: str) -> None:
    write(tmp_path, "ab", "x")
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    position = {"header": 3, "features": content.index(rows("a", "x").tobytes()), "end": -1}
    content[position.get(location, content.index(digest("a")))] ^= 1
    path.write_bytes(content)
    filled, table = read(tmp_path, "ab", "x")
    assert not filled.any()
    assert (table == -1).all()
    write(tmp_path, "ab", "x")
    assert read(tmp_path, "ab", "x")[0].all()


@pytest.mark.parametrize("length", [0, 4, 100, -1])
def test_a_truncated_shard_is_detected(tmp_path: Path, length: int) -> None:
    write(tmp_path, "ab", "x")
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:length])
    assert not read(tmp_path, "ab", "x")[0].any()
    assert not path.exists()


def test_features_of_another_width_are_not_used(tmp_path: Path) -> None:
    write_shard(tmp_path, [digest("a")], [digest("x")], np.zeros((1, 1, 3), dtype=np.float32))
    assert not read(tmp_path, "a", "x")[0].any()


def test_temporary_files_of_killed_writers_are_removed_whatever_the_clock_says(
    tmp_path: Path,
) -> None:
    with replacing(tmp_path / "shard") as written:
        written.write_bytes(b"half")
        os.utime(written, (1, 1))  # the clock was set forward
        abandoned = tmp_path / ".other.1.tmp"
        abandoned.write_bytes(b"half")
        os.utime(abandoned, (2**32, 2**32))  # the clock was set back
        read(tmp_path, "a", "x")
        assert written.exists()
        assert not abandoned.exists()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(
        UserError, match=r"cannot write .*file/cache.*: a file exists where a folder"
    ):
        write(tmp_path / "file" / "cache", "a", "x")


def test_one_process_at_a_time_fills_a_folder(tmp_path: Path) -> None:
    order = []

    def fill() -> None:
        with lock_for_writing(tmp_path / "cache"):
            order.append("second")

    with lock_for_writing(tmp_path / "cache"):
        waiting = threading.Thread(target=fill)
        waiting.start()
        time.sleep(0.1)
        order.append("first")
    waiting.join(10)
    assert order == ["first", "second"]


def write_old(folder: Path, changes: dict[str, np.ndarray | None] | None = None, **more) -> Path:
    """Write a shard of image a and view x as version 0.1 did, with changed tensors if given."""
    tensors = {
        "pictures": np.frombuffer(digest("a"), np.uint8)[None],  # vocabulary: ok
        "views": np.frombuffer(digest("x"), np.uint8)[None],
        "features": rows("a", "x"),
        **(changes or {}),
    }
    content = safetensors.numpy.save({k: v for k, v in tensors.items() if v is not None}, **more)
    path = folder / f"{hashlib.sha256(content).hexdigest()}.safetensors"
    path.write_bytes(content)
    return path


def test_shards_of_version_0_1_are_read(tmp_path: Path) -> None:
    write_old(tmp_path)
    filled, table = read(tmp_path, "a", "x")
    assert filled.all()
    assert np.array_equal(table, rows("a", "x"))


def test_shards_have_a_format_version(tmp_path: Path) -> None:
    write(tmp_path, "a", "x")
    (path,) = tmp_path.iterdir()
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"format_version": str(FORMAT_VERSION)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"views": None}, "it has no views"),
        ({"features": None}, "it has no features"),
        ({"features": np.zeros((1, 1, 3), dtype=np.float32)}, r"have shape \(1, 1, 3\)"),
    ],
)
def test_shards_of_another_format_are_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, object], message: str
) -> None:
    path = write_old(tmp_path, changes)
    assert not read(tmp_path, "a", "x")[0].any()
    assert path.exists()
    assert re.search(f"is ignored: .*{message}", caplog.text)
    write(tmp_path, "a", "x")
    assert read(tmp_path, "a", "x")[0].all()


def test_shards_of_a_newer_version_are_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_old(tmp_path, metadata={"format_version": "7"})
    assert not read(tmp_path, "a", "x")[0].any()
    assert path.exists()
    assert "it has format version 7, expected 1" in caplog.text


def test_a_damaged_shard_is_removed_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_old(tmp_path)
    values = rows("a", "x").tobytes()
    path.write_bytes(path.read_bytes().replace(values, values[::-1]))
    assert not read(tmp_path, "a", "x")[0].any()
    assert not path.exists()
    assert "is damaged (its content does not match its name) and removed" in caplog.text


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="permissions do not apply")
def test_a_shard_without_read_permission_is_not_removed(tmp_path: Path) -> None:
    path = write_old(tmp_path)
    path.chmod(0)
    assert not read(tmp_path, "a", "x")[0].any()
    assert path.exists()
