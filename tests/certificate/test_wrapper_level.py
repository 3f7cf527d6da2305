"""The level for module wrappers: what deserves it, what does not, and the faults that prove it."""

from __future__ import annotations

import msgspec
import pytest

from pipeconform.campaign.options import Options
from pipeconform.campaign.rejudge import Question
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.certificate.canaries import faults_of, run_canaries
from pipeconform.certificate.checks import check_contents
from pipeconform.certificate.decision import reasons_against
from pipeconform.certificate.package import write_package
from pipeconform.certificate.packing import packed
from pipeconform.certificate.rerun import rerun
from pipeconform.certificate.shards import merge
from pipeconform.report.result import Cell, Implementation, Result
from pipeconform.spec import certification_level, mandatory
from pipeconform.wrapper import WrapperClaims
from tests.facts import numbers, tells

LEVEL = certification_level("wrapper")
SUMMED = "pipeconform.reference_impl.faults.faulty_wrappers:Summed"
ROWS = [row.id for row in mandatory(LEVEL)]


def deserving(make, **changed: object) -> Result:
    """Every requirement judged and met on 1, 2 and 3 replicas; `changed` replaces cells by id."""
    cells = [
        make.cell(row, "Wrapper", judgements=3, distinct_cases=3, counts={f"p={p},v=1": 1 for p in (1, 2, 3)})
        for row in ROWS
    ]
    cells = [changed.get(cell.requirement.replace("-", "_"), cell) for cell in cells]
    result = make.result(*[cell for cell in cells if cell is not None])
    claims = msgspec.to_builtins(WrapperClaims(), order="deterministic")
    implementation = Implementation(
        reference="mine", name="mine", version="1", kind="wrapper", capabilities=claims
    )
    return make.changed(result, implementation=implementation)


def _cell(requirement: str, **others: object) -> Cell:
    return Cell(requirement=requirement, schedule="Wrapper", **others)


def test_the_level_is_about_wrappers_and_nothing_else(make) -> None:
    assert set(ROWS) == {row for row in ROWS if row.startswith("DPW-")}
    assert reasons_against(LEVEL, deserving(make)) == ()

    pipeline = make.result(make.cell("FWD-1", "GPipe"))
    (reason,) = reasons_against(LEVEL, pipeline)
    assert tells(reason, "level Wrapper", "to a wrapper", "this is a pipeline")
    (reason,) = reasons_against(certification_level("forward"), deserving(make))
    assert tells(reason, "level Forward", "to a pipeline", "this is a wrapper")


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (_cell("DPW-1", status="failed", judgements=3, distinct_cases=3), "DPW-1 failed"),
        (_cell("DPW-1", status="not_claimed"), "DPW-1 is not claimed"),
        (_cell("DPW-7", status="passed"), "DPW-7 is called passed, but was not judged so"),
        (None, "DPW-7 is missing"),
    ],
)
def test_what_does_not_deserve_it_is_told(make, cell: Cell | None, words: str) -> None:
    name = "DPW_7" if cell is None else cell.requirement.replace("-", "_")
    reasons = reasons_against(LEVEL, deserving(make, **{name: cell}))

    assert any(reason.startswith(words) for reason in reasons), reasons
    assert not any("under" in reason for reason in reasons if "any schedule" not in reason)


def test_numbers_of_replicas_that_are_claimed_must_be_judged(make) -> None:
    result = deserving(make)
    small = make.changed(
        result, cells=tuple(make.changed(cell, counts={"p=1,v=1": 3}) for cell in result.cells)
    )

    (reason,) = reasons_against(LEVEL, small)
    assert numbers(reason) == [2, 3]
    assert tells(reason, "nothing", "replicas")


@pytest.mark.parametrize(
    ("most", "judged", "absent"),
    [(3, (1, 2), "3"), (2, (1,), "2"), (2, (1, 2), None), (1, (1,), None), (3, (1, 2, 3), None)],
)
def test_as_many_replicas_are_judged_as_are_claimed(
    make, most: int, judged: tuple[int, ...], absent: str | None
) -> None:
    result = deserving(make)
    claims = msgspec.to_builtins(WrapperClaims(max_ranks=most), order="deterministic")
    made = make.changed(
        result,
        implementation=make.changed(result.implementation, capabilities=claims),
        cells=tuple(
            make.changed(cell, counts=dict.fromkeys((f"p={p},v=1" for p in judged), 1))
            for cell in result.cells
        ),
    )
    told = () if absent is None else (f"nothing was judged on {absent} replicas",)

    assert reasons_against(LEVEL, made) == told


def test_a_fault_of_a_wrapper_is_tried_on_real_ranks() -> None:
    (fault,) = [one for one in faults_of(["DPW-1"]) if one.reference.endswith(":Summed")]
    (canary,) = run_canaries([fault], options=Options(implementation="reference-wrapper"))

    assert canary.detected
    assert (canary.requirement, canary.schedule) == ("DPW-1", "Wrapper")
    assert canary.shown == ("failed: gradient differs",)
    assert {one.requirement for one in faults_of(ROWS)} == set(ROWS)


@pytest.mark.parametrize(
    ("implementation", "told"),
    [
        pytest.param("reference-wrapper", [], marks=pytest.mark.slow),
        (SUMMED, ["passed, now shows failed"]),
    ],
)
def test_a_sample_of_a_wrappers_package_is_executed_again(make, implementation: str, told: list[str]) -> None:
    from tests.certificate.conftest import sound

    question = Question(requirement="DPW-1", variant="default", case=WrapperCase())
    contents = make.changed(sound(make), result=deserving(make))
    doubts = rerun([question], contents, options=Options(implementation=implementation))
    found = [doubt.text for doubt in doubts if doubt.field.startswith("cells.")]

    assert len(found) == len(told)
    assert all(words in text for words, text in zip(told, found, strict=True))
    assert "implementation.name" in {doubt.field for doubt in doubts}


def test_ranks_of_a_wrappers_violation_are_counted(make) -> None:
    """Its package is checked as any other: two verdicts of three ranks are a doubt."""
    from tests.certificate.conftest import sound

    case = WrapperCase(ranks=3)
    violation = make.violation(
        "DPW-1",
        "Wrapper",
        make.case(),
        id="DPW-1:Wrapper:default:1f3a",
        verdicts="rank 0  returned\nrank 1  returned",
    )
    violation = make.changed(violation, case=case, digest=case.digest)
    result = deserving(make, DPW_1=make.cell("DPW-1", "Wrapper", violation))
    whole = sound(make)
    wrapped = make.changed(whole, result=result, certificate=make.changed(whole.certificate, level="wrapper"))

    doubts = [doubt.text for doubt in check_contents(wrapped).doubts]
    assert "DPW-1:Wrapper:default:1f3a: 2 of 3 ranks reported" in doubts


def test_shards_of_a_wrapper_are_merged_to_what_verifies_as_a_whole(make, tmp_path) -> None:
    """Requirements are dealt; a shard with a requirement of another one is in doubt."""
    from tests.certificate.conftest import sound, wrapper

    whole = sound(make, level=LEVEL, judged=wrapper())
    shards = [sound(make, level=LEVEL, judged=wrapper(), shard=f"{number}/2") for number in (1, 2)]
    assert check_contents(whole).granted
    for number, one in enumerate(shards):
        checked = check_contents(one)
        assert checked.doubts == ()
        assert {cell.requirement for cell in one.result.cells} == set(ROWS[number::2])
        write_package(packed(one), tmp_path / f"{number}.zip")

    merged = merge([tmp_path / "1.zip", tmp_path / "0.zip"])
    assert check_contents(merged).granted
    assert [cell.requirement for cell in merged.result.cells] == ROWS
    assert merged.result.run.selection == ",".join(ROWS)

    first, second = shards
    mixed = make.changed(first, result=make.changed(first.result, cells=second.result.cells))
    assert any("does not belong to the level" in str(doubt) for doubt in check_contents(mixed).doubts)
