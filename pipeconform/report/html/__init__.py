"""The report as one HTML page, made only from result files."""

from __future__ import annotations

from pipeconform.report.html.history import render_history
from pipeconform.report.html.index import render_index
from pipeconform.report.html.page import render_page

__all__ = ["render_history", "render_index", "render_page"]
