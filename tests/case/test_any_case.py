"""Cases of either kind are told apart wherever they are read."""

from __future__ import annotations

import msgspec
import pytest

from pipeconform.case.any_case import decode_any_case, schedule_of, world_sizes
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.errors import BadCaseError
from pipeconform.report.result import Violation, decode_cell
from tests.case.examples import small_case

CASE = small_case()
_TEXTS = ("id", "signature", "message", "where", "digest", "verdicts", "replay")


@pytest.mark.parametrize("case", [CASE, WrapperCase(), WrapperCase(ranks=3, module="normed")])
def test_either_kind_is_read_as_what_it_is(case) -> None:
    assert decode_any_case(msgspec.json.encode(case)) == case


def test_what_both_have_is_asked_in_one_way() -> None:
    assert (schedule_of(CASE), world_sizes(CASE)) == (CASE.schedule, (CASE.world.size,))
    assert (schedule_of(WrapperCase(ranks=3)), world_sizes(WrapperCase(ranks=3))) == ("Wrapper", (3,))
    assert world_sizes(WrapperCase(ranks=4, loaded_by=2)) == (4, 2)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "file: damaged, not JSON"),
        (b"[]", "file: not a case"),
        (b'{"schedule": "GPipe"}', "file: not a case.*missing required field"),
        (b'{"module": "unheard"}', "file: not a wrapper case.*module"),
        (b'{"steps": []}', "file: .*at least one rank, one step"),
    ],
)
def test_what_is_neither_is_refused_with_its_source(data: bytes, words: str) -> None:
    with pytest.raises(BadCaseError, match=words):
        decode_any_case(data, source="file")


def test_an_impossible_case_in_a_cell_is_refused_with_its_place() -> None:
    numbers = {"shrink_executions": 0, "occurrences": 1}
    violation = dict.fromkeys(_TEXTS, "") | numbers | {"status": "failed", "minimal": True, "confirmed": True}
    cell = {"requirement": "DPW-1", "schedule": "Wrapper", "status": "failed"}

    read = decode_cell(msgspec.json.encode(cell | {"violations": [violation | {"case": {"ranks": 3}}]}))
    assert isinstance(read.violations[0], Violation)
    assert read.violations[0].case == WrapperCase(ranks=3)
    with pytest.raises(msgspec.ValidationError, match=r"at least one rank.*violations\[0\]\.case"):
        decode_cell(msgspec.json.encode(cell | {"violations": [violation | {"case": {"ranks": 0}}]}))
