"""Import onnxruntime without its telemetry: threads that look up a server, and files at home."""

import os
from typing import Any


def import_onnxruntime() -> Any:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # it is read when the library is loaded
    import onnxruntime

    return onnxruntime
