"""Tables for pandas, which is optional."""

from collections.abc import Mapping, Sequence
from typing import Any


def data_frame(rows: Sequence[Mapping[str, str | int | float | None]]) -> Any:
    """Return a pandas.DataFrame of rows with the same keys.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise ImportError("to_pandas needs pandas: pip install pandas") from error
    return pd.DataFrame(list(rows))
