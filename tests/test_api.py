"""What the command line does can be done from Python: data in, data out, errors of one tree."""

from pathlib import Path

import pytest

import pipeconform
from pipeconform.certificate.package import write_package
from pipeconform.certificate.packing import packed
from pipeconform.commands.init import skeleton
from pipeconform.errors import BadPackageError, LevelUnavailableError, UsageError
from tests.certificate.conftest import SCHEDULES, sound
from tests.report.conftest import make

__all__ = ["make"]


@pytest.fixture
def adapter(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(skeleton(name="mine.py"), "utf-8")
    return f"{tmp_path / 'mine.py'}:MyAdapter"


def test_an_implementation_is_judged_and_compared(adapter: str, tmp_path: Path, capsys) -> None:
    result = pipeconform.judge_implementation(
        adapter, profile="smoke", requirements=["FWD-1"], ranks="1-2", out=tmp_path / "out"
    )
    comparison = pipeconform.compare(result, pipeconform.read_result(tmp_path / "out/result.json"))

    assert [(cell.requirement, cell.status) for cell in result.cells] == [("FWD-1", "passed")]
    assert result.implementation.source == "mine.py"
    assert (comparison.changes, comparison.blocked) == ((), False)
    assert "nothing got worse" in pipeconform.render_comparison(comparison, "text")
    assert capsys.readouterr().out == ""


def test_a_proposed_file_of_expectations_is_written_and_read(make, tmp_path: Path) -> None:
    result = make.result(make.cell("TRN-4", "GPipe", make.violation("TRN-4", "GPipe")))
    proposal = pipeconform.propose(result)
    pipeconform.write_proposal(proposal, tmp_path / "known.toml")

    with pytest.raises(UsageError, match="the entry lacks reason, issue, owner, expires"):
        pipeconform.read_expectations(tmp_path / "known.toml")


def test_a_wrong_name_is_an_error_of_ours(adapter: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown requirement or chapter 'FW'"):
        pipeconform.judge_implementation(adapter, requirements=["FW"], out=tmp_path)


def test_a_level_that_is_not_available_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipeconform.spec.levels.missing", lambda level: ("DPC-99",))

    with pytest.raises(LevelUnavailableError, match="level Data-parallel is not available"):
        pipeconform.certify("reference", "data-parallel")


def test_a_package_that_could_not_be_kept_is_refused_before_anything_is_judged(adapter: str) -> None:
    with pytest.raises(BadPackageError, match=r"cannot write /proc/nowhere/x.zip: .*; choose another --out"):
        pipeconform.certify(adapter, "forward", out=Path("/proc/nowhere/x.zip"))


def test_packages_are_merged_and_verified(make, tmp_path: Path) -> None:
    paths = []
    for number in (1, 2):
        contents = sound(make, schedules=SCHEDULES[number - 1 :: 2], shard=f"{number}/2")
        paths.append(tmp_path / f"{number}.zip")
        write_package(packed(contents), paths[-1])
    merged = pipeconform.merge(paths, tmp_path / "whole.zip")

    assert merged.granted
    assert pipeconform.verify(tmp_path / "whole.zip").granted
    assert not pipeconform.verify(paths[0]).granted
