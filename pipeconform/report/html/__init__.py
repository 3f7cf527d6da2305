"""The report as one page of HTML, made from result files and from nothing else."""

from __future__ import annotations

from pipeconform.report.html.page import render_page

__all__ = ["render_page"]
