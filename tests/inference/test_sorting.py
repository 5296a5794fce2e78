"""Images are copied into class folders; nothing is overwritten."""

from scs_supcon.inference import Prediction
from scs_supcon.inference.sorting import folder_name, sort_into


def prediction(path, label, unknown=False):
    return Prediction(str(path), label, 0.9, ((label, 0.9),), unknown, label, 0.5, 0.4)


def test_files_of_the_same_name_are_kept_apart(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jpg").write_bytes(b"1" if name == "c" else name.encode())
    predictions = [prediction(tmp_path / name / "x.jpg", "wren") for name in ("a", "b")]
    predictions.append(prediction(tmp_path / "c" / "x.jpg", "wren", unknown=True))
    out = tmp_path / "out"
    for _ in range(2):
        assert sort_into(predictions, out) == {"wren": 2, "unknown": 1}
        copies = {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*.jpg")}
        assert copies == {"wren/x.jpg": b"a", "wren/x-2.jpg": b"b", "unknown/x.jpg": b"1"}


def test_class_names_stay_inside_the_folder():
    assert folder_name("wren") == "wren"
    assert folder_name("../up") == "__up"
    assert folder_name("a/b:c") == "a_b_c"
    assert folder_name("..") == "_"
