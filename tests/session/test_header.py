"""Plain pytest says in its header that torch is not tested."""

import pytest

from pipeconform.session.run import PytestRun


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("2.15.0", None),
        (
            "2.16.0.dev20261101",
            "pipeconform: torch 2.16.0.dev20261101: not tested with this release (tested with torch>=2.9,<2.16)",
        ),
    ],
)
def test_the_header_warns_about_an_untested_torch_only(monkeypatch, version, said):
    monkeypatch.setattr("pipeconform.session.run.torch_version", lambda: version)

    assert PytestRun.pytest_report_header() == said
