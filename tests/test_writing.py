"""A file is there as a whole or not at all."""

from __future__ import annotations

import pytest

from pipeconform.writing import whole_file


def test_a_file_takes_its_place_at_the_end_only(tmp_path) -> None:
    path = tmp_path / "folder" / "file.txt"
    with whole_file(path) as part:
        part.write_text("new")
        assert not path.exists()

    assert path.read_text() == "new"
    assert [one.name for one in path.parent.iterdir()] == ["file.txt"]


def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")

    def interrupted() -> None:
        with whole_file(path) as part:
            part.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["file.txt"]


def test_a_folder_that_cannot_be_made_is_an_error_of_the_system(tmp_path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(OSError, match="file"), whole_file(tmp_path / "file" / "result.json"):
        pass
