"""A folder belongs to one run, also while it is emptied."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from pipeconform.commands.folders import claimed, emptied
from pipeconform.errors import BadResultError


def refusal(folder, **options) -> str:
    """Why the folder cannot be claimed."""
    with ExitStack() as stack, pytest.raises(BadResultError) as found:
        stack.enter_context(claimed(folder, **options))
    return str(found.value)


def test_a_second_run_is_refused_until_the_first_has_ended(tmp_path):
    folder = tmp_path / "results"
    with claimed(folder):
        assert refusal(folder, remedy="take another") == f"another run is writing to {folder}; take another"

    with claimed(folder):
        pass


def test_an_emptied_folder_is_still_claimed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = tmp_path / "results"
    with claimed(folder):
        (folder / "kept" / "cases").mkdir(parents=True)
        (folder / "result.json").write_text("{}")
        (folder / "link").symlink_to(outside, target_is_directory=True)

        emptied(folder)

        assert [path.name for path in folder.iterdir()] == [".lock"]
        assert outside.is_dir()
        assert refusal(folder).startswith("another run is writing to")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "results"

    assert refusal(folder).startswith(f"cannot write results to {folder}: ")
    assert refusal(folder).endswith("; choose another --out")
