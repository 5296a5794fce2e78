"""Files of Arrow streams, as `save_to_disk` of Hugging Face's `datasets` writes them.

    flowers/dataset_dict.json                            flowers/dataset_info.json
    flowers/train/data-00000-of-00001.arrow       or     flowers/data-00000-of-00001.arrow
    flowers/test/data-00000-of-00001.arrow

The files are mapped into memory, so that a dataset may be larger than the memory.
"""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from scs_supcon.errors import UserError
from scs_supcon.io.records import open_record, read_json_object

if TYPE_CHECKING:
    from pyarrow import Table

STATE = "state.json"


def saved_arrow_files(folder: Path) -> list[Path]:
    """Return the Arrow files of a dataset that was saved with `save_to_disk`; [] for others.

    Raises:
        UserError: the rows are given by a file of indices, as old versions wrote them.
    """
    splits = sorted(part.parent for part in folder.glob(f"*/{STATE}"))
    parts = splits if (folder / "dataset_dict.json").is_file() else [folder]
    files: list[Path] = []
    for part in parts:
        if not (part / STATE).is_file():
            continue
        state = read_json_object(part / STATE, links=True)
        if state.get("_indices_files") or state.get("_indices_data_files"):
            raise UserError(
                f"{part} has rows in the order of another file, which cannot be read: load it "
                "with datasets, call flatten_indices(), and save it again"
            )
        files += sorted(part.glob("*.arrow"))
    return files


@lru_cache(maxsize=256)
def arrow_table(file: Path) -> "Table":
    """Return the rows of a file of one Arrow stream, mapped into memory.

    Raises:
        ArrowException: the file is damaged.
    """
    import pyarrow as pa

    with open_record(file, None, links=True), pa.memory_map(str(file)) as source:
        table = pa.ipc.open_stream(source).read_all()
    table.validate(full=True)
    return table
