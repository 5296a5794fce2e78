"""One page that shows what a finished run found, from the files the run left."""

from scs_supcon.report.build import build_report

__all__ = ["build_report"]
