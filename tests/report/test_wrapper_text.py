"""A wrapper's case in words: whatever is not usual is told."""

from __future__ import annotations

from dataclasses import fields

import pytest
from msgspec import structs

from pipeconform.case.wrapper_case import Pass, Step, Uneven, WrapperCase
from pipeconform.report.case_text import describe_case
from pipeconform.sharding import Sharding
from pipeconform.wrapper import WrapOptions

OTHER = {
    "module": "towers",
    "form": "dict",
    "ranks": 3,
    "options": WrapOptions(find_unused=True),
    "steps": (Step(),),
    "own_values": True,
    "own_shape": True,
    "uneven": Uneven(steps=(1, 2)),
    "seed": 3,
}


def test_a_case_is_told_in_aligned_lines() -> None:
    case = WrapperCase(
        module="towers",
        form="nested",
        ranks=2,
        options=WrapOptions(
            bucket_mib=1e-6, find_unused=True, broadcast_buffers=False, ignored=("own", "seen")
        ),
        steps=(
            Step(passes=(Pass(sync="no", uses=("a", "")), Pass(forwards=2))),
            Step(zero="keep"),
            Step(zero="keep"),
        ),
        own_values=True,
        hook="float16",
        uneven=Uneven(steps=(2, 3), divide_by_initial=False, raise_early=True),
    )

    assert describe_case(case).splitlines() == [
        "replicas      2, each with other data",
        "module        towers, returns a nested",
        "wrapped with  buckets of 1e-06 MiB, find_unused, no broadcast_buffers, ignored own, seen",
        "begin         every rank with other values",
        "hook          float16",
        "program       step(pass (in no_sync, towers a | none); pass (2 forwards)), 2 × step(pass; zero_grad(keep))",
        "uneven        the ranks run 2, 3 steps inside join, divided by the effective world size, "
        "an early end is an error",
        "seed          0",
    ]


@pytest.mark.parametrize("field", [one.name for one in structs.fields(WrapperCase) if one.name in OTHER])
def test_another_value_of_a_field_is_another_text(field: str) -> None:
    base = WrapperCase()

    assert describe_case(structs.replace(base, **{field: OTHER[field]})) != describe_case(base)


@pytest.mark.parametrize("field", [one.name for one in fields(WrapOptions)])
def test_another_option_is_another_text(field: str) -> None:
    default = getattr(WrapOptions(), field)
    named = {"sharding": Sharding()}
    other = named.get(field) or {bool: not default, tuple: (1,), str: "x"}.get(type(default), 7)

    told = describe_case(WrapperCase(options=WrapOptions(**{field: other})))
    assert told != describe_case(WrapperCase())
