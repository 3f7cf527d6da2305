"""The results below a folder are found, and what looks like one and is none is named."""

from pathlib import Path

from pipeconform.report.collection import collect, page_of
from pipeconform.report.result import write_result


def test_results_are_found_by_name_and_by_their_look(make, tmp_path):
    result = make.result(make.cell("FWD-1", "GPipe"))
    for name in ("b/result.json", "a/nightly.json", ".cache/result.json"):
        write_result(result, tmp_path / name)
    (tmp_path / "b/package.json").write_text('{"name": "other", "format": 1}')
    (tmp_path / "b/half.json").write_text('{"format": 7, "cells": [')
    found = collect(tmp_path)

    assert [one.path for one in found.results] == [Path("a/nightly.json"), Path("b/result.json")]
    assert found.results[0].result == result
    assert found.unreadable == ()


def test_a_damaged_result_is_named_and_does_not_hide_the_others(make, tmp_path):
    write_result(make.result(make.cell("FWD-1", "GPipe")), tmp_path / "a/result.json")
    (tmp_path / "result.json").write_text('{"format": 7, "cells": [')
    (tmp_path / "old.json").write_text('{"format": 99, "cells": [], "implementation": {}}')
    found = collect(tmp_path)

    assert len(found.results) == 1
    assert [why.partition(":")[0] for why in found.unreadable] == [
        str(tmp_path / "old.json"),
        str(tmp_path / "result.json"),
    ]


def test_no_two_results_of_a_folder_share_a_page():
    names = ["result.json", "report.json", "report.html.json", "index.json"]
    pages = [page_of(Path("a") / name) for name in names]

    assert pages[0] == Path("a/report.html")
    assert len({*pages, Path("a/index.html")}) == len(names) + 1
