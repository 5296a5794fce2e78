"""The report of a run: one self-contained page, and figures."""

from scs_supcon.report.build import build_report

__all__ = ["build_report"]
