"""No link of a judgement can be removed unnoticed: for each there is an observation that it alone rejects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from pipeconform.errors import PipeconformError
from pipeconform.judge.registry import JUDGEMENTS
from tests.judge.faults import FAULTS
from tests.judge.grid import EVIDENCE, evidence_of
from tests.judge.links import Link, all_links, biting
from tests.judge.spoiling import Spoil
from tests.judge.test_every_field_is_judged import charged, in_charge, spoilt

NEEDLESS = {
    "compilation_is_named": "judges words: tests/judge/test_forward.py",
    "refusal_is_clear": "judges words: tests/judge/test_tracing.py",
    "shapes_are_told_apart": "judges words: tests/judge/test_tracing.py",
    "too_little_crosses": "counts bytes of recorded operations: tests/judge/traffic/test_crossing.py",
    "_everything": "collected before the first wrong step is chosen: tests/judge/test_training.py",
    "_evaluations_before_updates": "collected before the first wrong step is chosen: tests/judge/test_training.py",
    "_everything_goes_on": "collected before the first wrong step is chosen: tests/judge/test_every_field_is_judged.py",
    "_replicas_are_right": "collected before the first wrong step is chosen: tests/judge/test_every_field_is_judged.py",
    "_placed_otherwise": "its callers say step and stage of what it finds, and tell it",
    "repeats_exactly": "compares two executions: tests/judge/test_lifecycle.py",
    "determinism": "gives nothing by itself",
}
"""Links that are tested in another way, by function."""
UNREACHABLE = {
    "declared table does not parse back": "the table comes from the parser, of which `tests/schedule` "
    "holds that it reads what it writes",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_one_chain_of_links(name):
    judge, made = FAULTS[name]

    assert biting(judge, made()) != frozenset()


def _needed() -> set[Link]:
    return {
        link
        for link in all_links()
        if link.function not in NEEDLESS and not any(text in link.text for text in UNREACHABLE)
    }


def _in_turn() -> Iterator[tuple[str, str, int, Spoil]]:
    """One change of each kind to each field, of every requirement's first evidence, then of its others."""
    seen: set[tuple[str, str, str]] = set()
    rounds = Counter[str]()
    ordered = []
    for name in EVIDENCE:
        for requirement in in_charge(name):
            ordered.append((rounds[requirement], requirement, name))
            rounds[requirement] += 1
    for _, requirement, name in sorted(ordered):
        for rank, spoil in charged(requirement, name):
            kind = (requirement, spoil.field, spoil.how)
            if kind not in seen:
                seen.add(kind)
                yield requirement, name, rank, spoil


@pytest.mark.slow
def test_every_link_has_an_observation_that_it_alone_rejects():
    missing = _needed()
    for judge, made in FAULTS.values():
        missing -= biting(judge, made())
    for requirement, name, rank, spoil in _in_turn():
        if not missing:
            break
        try:
            missing -= biting(JUDGEMENTS[requirement].judge, spoilt(evidence_of(name), rank, spoil))
        except (PipeconformError, IndexError, KeyError, ValueError):
            continue  # the record contradicts itself, which shows nothing about links

    assert "\n".join(sorted(map(str, missing))) == ""


def test_what_is_excused_is_there():
    functions = {link.function for link in all_links()}

    assert NEEDLESS.keys() <= functions
    assert all(any(text in link.text for link in all_links()) for text in UNREACHABLE)
