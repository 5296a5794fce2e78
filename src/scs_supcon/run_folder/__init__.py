"""Everything a run writes, and how it is taken up again: atomic, hashed, no pickle."""

from scs_supcon.run_folder.checkpoint import Checkpoint
from scs_supcon.run_folder.folder import RunFolder
from scs_supcon.run_folder.keeper import Keeper, SavePolicy, Stopped, ignore_signals

__all__ = ["Checkpoint", "Keeper", "RunFolder", "SavePolicy", "Stopped", "ignore_signals"]
