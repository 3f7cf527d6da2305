"""Results made by hand, the same way as for the reports."""

from tests.report.conftest import make

__all__ = ["make"]
