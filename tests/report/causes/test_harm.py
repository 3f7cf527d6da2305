"""How harmful a violation is: what goes unnoticed before what stops a run, and that before wrong words."""

import pytest
from msgspec import structs

from pipeconform.report.causes.harm import KINDS, SIGNATURES, WORDS, Harm, harm_of
from pipeconform.spec.wrappers import all_requirements

ECHO = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:20159"


@pytest.mark.parametrize(
    ("requirement", "fields", "expected"),
    [
        ("TRN-1", {"signature": "gradient value"}, Harm.SILENT),
        ("FWD-17", {"signature": "hooks ran more often"}, Harm.SILENT),
        ("ERR-4", {"signature": "output_dtype: accepted"}, Harm.SILENT),
        ("ERR-12", {"signature": "gradient value"}, Harm.SILENT),
        ("ERR-3", {"signature": "output_shape: silent wrong result"}, Harm.SILENT),
        ("ERR-11", {"signature": "after an error: hang"}, Harm.STOPS),
        ("SCH-7", {"status": "hung", "signature": "hang"}, Harm.STOPS),
        ("LIF-3", {"status": "crashed", "signature": "died: SIGABRT"}, Harm.STOPS),
        ("ERR-7", {"signature": "not refused everywhere"}, Harm.ONE_RANK),
        (
            "FWD-16",
            {"status": "error", "signature": "refused: no", "verdicts": "rank 0  returned"},
            Harm.REFUSED,
        ),
        ("LIF-3", {"signature": "outputs kept"}, Harm.LEAK),
        ("LIF-7", {"signature": "boundary tensors beyond the bound"}, Harm.LEAK),
        ("SCH-4", {"signature": "bubble"}, Harm.LEAK),
        ("SCH-4", {"signature": "declared table is incomplete"}, Harm.DECLARED),
        ("TRC-2", {"signature": "foreign key"}, Harm.DECLARED),
        ("SPL-4", {"signature": "the weight part twice: unclear error"}, Harm.DECLARED),
        ("ERR-2", {"signature": "input_dtype: stage not named"}, Harm.DECLARED),
    ],
)
def test_the_class_of_harm(make, requirement, fields, expected):
    assert harm_of(make.violation(requirement, "GPipe", **fields), requirement) is expected


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (["raised    ValueError: no"], Harm.REFUSED),
        (["raised    ValueError: no", "raised    ValueError: no"], Harm.REFUSED),
        (["raised    ValueError: no", "returned"], Harm.ONE_RANK),
        (["raised    ValueError: no", f"raised    {ECHO}"], Harm.ONE_RANK),
        (["raised    ValueError: no", "stuck     no progress"], Harm.ONE_RANK),
    ],
)
def test_an_error_that_some_ranks_are_not_told_does_more_harm(make, ends, expected):
    verdicts = "\n".join(f"rank {rank}  {end}" for rank, end in enumerate(ends))
    violation = make.violation("FWD-2", "GPipe", status="error", signature="raised", verdicts=verdicts)

    assert harm_of(violation, "FWD-2") is expected


def test_a_rank_outside_of_the_pipeline_has_nothing_to_raise(make):
    verdicts = "rank 0  raised    ValueError: no\nrank 1  returned\nrank 2  raised    ValueError: no"
    violation = make.violation("FWD-2", "GPipe", status="error", signature="raised", verdicts=verdicts)
    world = structs.replace(violation.case.world, size=3, pipeline_ranks=(0, 2))
    outside = structs.replace(violation, case=structs.replace(violation.case, world=world))

    assert harm_of(violation, "FWD-2") is Harm.ONE_RANK
    assert harm_of(outside, "FWD-2") is Harm.REFUSED


def test_the_data_name_requirements_that_exist_each_once():
    named = [name for names in KINDS.values() for name in names]

    assert len(set(named)) == len(named)
    assert set(named) <= {row.id for row in all_requirements()}
    assert {*WORDS} == {*Harm} >= {harm for _, harm in SIGNATURES}
