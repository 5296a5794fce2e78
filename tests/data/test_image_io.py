import resource
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from scs_supcon.data.image_io import (
    MAX_PIXELS,
    ImageError,
    ImageFiles,
    inspect_image,
    open_image,
    short_side,
)
from scs_supcon.errors import UserError

ARROW = np.zeros((6, 9, 3), dtype=np.uint8)
ARROW[0, 0] = 255  # one white corner distinguishes all eight orientations


def saved(path: Path, pixels: np.ndarray, **options: object) -> Path:
    Image.fromarray(pixels).save(path, **options)
    return path


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tif", ".webp", ".gif", ".jpg"])
def test_each_format_opens_as_rgb(tmp_path: Path, suffix: str) -> None:
    grey = np.full((5, 7, 3), 128, dtype=np.uint8)
    options = {"lossless": True} if suffix == ".webp" else {}
    image = open_image(saved(tmp_path / f"grey{suffix}", grey, **options))
    assert image.mode == "RGB"
    assert image.size == (7, 5)
    assert np.abs(np.asarray(image).astype(int) - 128).max() <= 1


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_camera_orientation_is_applied(tmp_path: Path, orientation: int, suffix: str) -> None:
    # The change of the upright image that each EXIF value describes.
    store = {
        1: lambda a: a,
        2: np.fliplr,
        3: lambda a: np.rot90(a, 2),
        4: np.flipud,
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, 1),
        7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
        8: lambda a: np.rot90(a, 3),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path / f"arrow{suffix}", np.ascontiguousarray(store(ARROW)), exif=exif)
    np.testing.assert_array_equal(np.asarray(open_image(path)), ARROW)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_a_damaged_exif_record_is_ignored(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.jpg", ARROW, exif=b"Exif\0\0MM\0*nonsense")
    assert open_image(path).size == (9, 6)


def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path) -> None:
    ramp = np.arange(256, dtype=np.uint16).reshape(16, 16) * 257
    for suffix in (".png", ".tif"):
        path = saved(tmp_path / f"ramp{suffix}", ramp)
        image = np.asarray(open_image(path))
        np.testing.assert_array_equal(image[..., 0].ravel(), np.arange(256))
        assert image.shape == (16, 16, 3)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_values_without_a_defined_range_are_scaled_to_the_full_range(
    tmp_path: Path, dtype: type
) -> None:
    ramp = np.linspace(-1000, 1000, 256).reshape(16, 16).astype(dtype)
    image = np.asarray(open_image(saved(tmp_path / "ramp.tif", ramp)))
    assert image.min() == 0
    assert image.max() == 255
    assert np.all(np.diff(image[..., 0].ravel().astype(int)) >= 0)
    flat = open_image(saved(tmp_path / "flat.tif", np.ones((4, 4), dtype=dtype)))
    assert np.asarray(flat).max() == 0


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "RGB"])
def test_transparent_parts_become_white(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "clear.png"
    if mode in ("RGBA", "LA"):
        Image.new(mode, (4, 4)).save(path)  # black and fully transparent
    else:
        Image.new(mode, (4, 4)).save(path, transparency=(0, 0, 0) if mode == "RGB" else 0)
    np.testing.assert_array_equal(np.asarray(open_image(path)), np.full((4, 4, 3), 255))


def test_half_transparent_red_over_white_is_pink(tmp_path: Path) -> None:
    path = tmp_path / "pink.png"
    Image.new("RGBA", (2, 2), (255, 0, 0, 128)).save(path)
    assert open_image(path).getpixel((0, 0)) == (255, 127, 127)


def test_palette_grey_and_cmyk_images_become_rgb(tmp_path: Path) -> None:
    red = Image.new("RGB", (4, 4), (255, 0, 0))
    red.convert("P").save(tmp_path / "palette.png")
    red.convert("CMYK").save(tmp_path / "ink.jpg", quality=100)
    Image.new("1", (4, 4), 1).save(tmp_path / "white.png")
    assert open_image(tmp_path / "palette.png").getpixel((0, 0)) == (255, 0, 0)
    inked = np.array(open_image(tmp_path / "ink.jpg").getpixel((0, 0)))
    assert np.abs(inked - (255, 0, 0)).max() < 8
    assert open_image(tmp_path / "white.png").getpixel((0, 0)) == (255, 255, 255)


def test_lab_colours_become_rgb(tmp_path: Path) -> None:
    to_lab = ImageCms.buildTransform(
        ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB"
    )
    lab = ImageCms.applyTransform(Image.new("RGB", (4, 4), (255, 0, 0)), to_lab)
    assert lab is not None
    lab.save(tmp_path / "lab.tif")
    colour = np.array(open_image(tmp_path / "lab.tif").getpixel((0, 0)))
    assert np.abs(colour - (255, 0, 0)).max() < 8


def test_an_animation_is_read_as_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "two.gif", save_all=True, append_images=frames[1:])
    assert open_image(tmp_path / "two.gif").getpixel((0, 0)) == (255, 0, 0)


def test_a_truncated_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for suffix in (".jpg", ".png", ".bmp", ".tif"):
        path = saved(tmp_path / f"cut{suffix}", noise)
        path.write_bytes(path.read_bytes()[:-2000])
        with pytest.raises(ImageError, match=f"cut{suffix}") as caught:
            open_image(path)
        assert caught.value.kind in ("truncated", "unreadable")
        if suffix == ".jpg":
            assert caught.value.kind == "truncated"


def test_a_file_that_is_not_an_image_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "page.jpg").write_text("<html>404</html>")
    (tmp_path / "empty.png").touch()
    Image.new("RGB", (2, 2)).save(tmp_path / "other.ppm")
    for name, reason in [
        ("page.jpg", "not a JPEG"),
        ("empty.png", "is empty"),
        ("other.ppm", "not a JPEG"),
        ("missing.png", "does not exist"),
        (".", "Is a directory"),
    ]:
        with pytest.raises(UserError, match=reason) as caught:
            open_image(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert caught.value.kind == "unreadable"


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [9_500, 30_000])
def test_a_decompression_bomb_is_rejected_by_its_header(tmp_path: Path, side: int, bomb) -> None:
    assert side**2 > MAX_PIXELS
    with pytest.raises(ImageError, match=r"bomb\.bmp.*resize") as caught:
        open_image(bomb(tmp_path / "bomb.bmp", side))
    assert caught.value.kind == "too_large"


def png_with(path: Path, kind: bytes, content: bytes) -> Path:
    """Write a PNG with one more chunk after its header."""
    plain = saved(path, ARROW).read_bytes()
    chunk = kind + content
    block = len(content).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big")
    path.write_bytes(plain[:33] + block + plain[33:])  # 8 bytes of signature, 25 of IHDR
    return path


@pytest.mark.parametrize("kind", ["iCCP", "zTXt", "iTXt", "eXIf"])
def test_metadata_cannot_expand_in_memory(tmp_path: Path, kind: str) -> None:
    compressor, zeros = zlib.compressobj(9), bytes(1 << 20)
    bomb = b"".join(compressor.compress(zeros) for _ in range(200)) + compressor.flush()
    contents = {
        "iCCP": b"icc\0\0" + bomb,
        "zTXt": b"Comment\0\0" + bomb,
        "iTXt": b"XML:com.adobe.xmp\0\1\0\0\0" + bomb,
        # An IFD with one tag of four billion values, and the next IFD is the same one.
        "eXIf": b"II*\0\x08\0\0\0\x01\0\x0e\x01\x02\0\xff\xff\xff\xff\x08\0\0\0\x08\0\0\0",
    }
    path = png_with(tmp_path / "bomb.png", kind.encode(), contents[kind])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        assert open_image(path).size == (9, 6)
    except ImageError as error:
        assert "bomb.png" in str(error)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert used < 100 << 10, f"{used >> 10} MiB"


@pytest.mark.parametrize("shape", [(1, 60_000), (60_000, 1), (3, 301)])
def test_an_image_with_an_extreme_aspect_ratio_is_an_error(
    tmp_path: Path, shape: tuple[int, int]
) -> None:
    path = saved(tmp_path / "thin.png", np.zeros((*shape, 3), dtype=np.uint8))
    with pytest.raises(ImageError, match=r"thin\.png.*100 times.*crop") as caught:
        open_image(path)
    assert caught.value.kind == "too_large"


def test_a_long_image_is_read(tmp_path: Path) -> None:
    path = saved(tmp_path / "long.png", np.zeros((3, 300, 3), dtype=np.uint8))
    assert open_image(path).size == (300, 3)


def test_a_jpeg_is_decoded_at_a_reduced_size_of_at_least_the_minimum(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((800, 600)).save(tmp_path / "a.jpg")
    assert open_image(tmp_path / "a.jpg").size == (800, 600)
    for at_least, size in [(601, 800), (301, 800), (300, 400), (160, 400), (75, 100), (1, 100)]:
        assert open_image(tmp_path / "a.jpg", at_least).width == size
    full = open_image(tmp_path / "a.jpg").resize((100, 75), Image.Resampling.BOX)
    small = open_image(tmp_path / "a.jpg", 75)
    assert np.abs(np.asarray(full).astype(int) - np.asarray(small)).mean() < 2
    Image.fromarray(noise).resize((800, 600)).save(tmp_path / "a.png")
    assert open_image(tmp_path / "a.png", 10).size == (800, 600)


def test_files_open_by_index_and_hash_their_content(tmp_path: Path) -> None:
    paths = tuple(saved(tmp_path / f"{n}.png", ARROW + n) for n in (0, 1, 0, 2))
    files = ImageFiles(paths)
    assert files.open(1).size == (9, 6)
    assert files.file_hash(0) != files.file_hash(1)
    assert len(files.file_hash(0)) == 64
    assert short_side(paths[0]) == 6


def test_hashing_a_missing_image_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"gone\.png does not exist"):
        ImageFiles((tmp_path / "gone.png",)).file_hash(0)


def test_inspection_returns_the_format_and_conversions(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.jpg", ARROW)
    decoded = inspect_image(path)
    assert (decoded.format, decoded.conversions) == ("JPEG", ())
    np.testing.assert_array_equal(np.asarray(decoded.image), np.asarray(open_image(path)))
    Image.new("RGBA", (4, 4), (255, 0, 0, 128)).save(tmp_path / "b.jpg", "PNG")
    decoded = inspect_image(tmp_path / "b.jpg")
    assert (decoded.format, decoded.conversions) == ("PNG", ("transparency",))
    with pytest.raises(ImageError, match="does not exist"):
        inspect_image(tmp_path / "c.jpg")


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("at_least", [0, 1, 64])
def test_a_truncated_jpeg_is_detected_at_every_scale(
    tmp_path: Path, at_least: int, progressive: bool
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    path = tmp_path / "cut.jpg"
    Image.fromarray(noise).resize((500, 400)).save(path, progressive=progressive)
    content = path.read_bytes()
    for share in (0.3, 0.9, 0.98):
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(ImageError) as caught:
            inspect_image(path, at_least)
        assert caught.value.kind == "truncated"


@pytest.mark.filterwarnings("error::PIL.Image.DecompressionBombWarning")
def test_the_short_side_of_a_decompression_bomb_is_read_without_a_warning(
    tmp_path: Path, bomb
) -> None:
    assert short_side(bomb(tmp_path / "bomb.bmp", 10_000)) == 10_000
