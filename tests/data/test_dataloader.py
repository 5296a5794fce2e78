import pytest

from scs_supcon.data.dataloader import killed_loaders_explained
from scs_supcon.errors import UserError


@pytest.mark.parametrize(
    "error", [EOFError(), RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")]
)
def test_a_dead_process_is_explained(error: Exception) -> None:
    with (
        pytest.raises(UserError, match=r"was killed.*fewer --workers"),
        killed_loaders_explained(),
    ):
        raise error


def test_a_bug_stays_a_bug() -> None:
    with pytest.raises(RuntimeError, match="shapes do not fit"), killed_loaders_explained():
        raise RuntimeError("shapes do not fit")
