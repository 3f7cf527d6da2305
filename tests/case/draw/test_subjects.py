"""Every subject: who claims it, how it is found, what is drawn, and its control.

What is drawn of each, its controls and plainer cases are remembered as digests in drawn.json, because results and
certificates name their corpora: what changes how cases are drawn changes every corpus that it is about. Where that is
meant, run ``python -m tests.case.draw.test_subjects``. The claims of everything and of the reference grow with every
new claim, and what is drawn under them may change, too.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from pipeconform.reference_impl.adapter import ReferenceAdapter

from pipeconform.adapter import BoundaryClaim, Capabilities, Placement, ScheduleClaim
from pipeconform.case import blocks
from pipeconform.case import limits as sizes_of_cases
from pipeconform.case.case import Case, Zero, decode_case, encode_case
from pipeconform.case.draw.cases import draw_case
from pipeconform.case.draw.claimed import is_claimed, reachable
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.registry import SUBJECTS, collected
from pipeconform.case.draw.strategies import cases
from pipeconform.case.draw.subject import Subject
from pipeconform.case.draw.subjects.together import pairs_in
from pipeconform.case.draw.traits import plainer, traits
from pipeconform.case.focus import Focus, Limits
from pipeconform.case.simpler.scope import MAPS
from tests.case.draw.drawn import choosing
from tests.case.examples import EVERYTHING, small_case

REFERENCE = Limits(capabilities=ReferenceAdapter().describe().capabilities, max_ranks=4)
WIDE = Limits(capabilities=EVERYTHING, max_ranks=4)
SEEDS = range(5)
LOOKS_PLAIN = {focus for focus, subject in SUBJECTS.items() if subject.found is None}
TOGETHER = (Focus.TOGETHER, Focus.REPLICAS_TOGETHER, Focus.TENSOR_TOGETHER)
DRAWN = Path(__file__).with_name("drawn.json")
WITH_CONTROL = [focus for focus, subject in SUBJECTS.items() if subject.control]


@functools.cache
def drawn_of(focus: Focus) -> tuple[Case, ...]:
    """Cases of a subject under the reference's claims, and under claims of everything; chosen without Hypothesis."""
    return tuple(
        draw_case(Drawing(choosing(seed), limits, claim), SUBJECTS[focus])
        for limits in (REFERENCE, WIDE)
        for claim in limits.capabilities.schedules
        if is_claimed(focus, claim, limits.capabilities) and reachable(limits, claim, focus)
        for seed in SEEDS
    )


def with_subject(focus: Focus) -> list[Case]:
    return [case for case in drawn_of(focus) if focus in traits(case)]


def test_every_name_has_a_subject_and_every_subject_a_name_of_its_own() -> None:
    names = [subject.focus for subject in collected("pipeconform.case.draw.subjects")]

    assert sorted(names) == sorted(Focus)
    assert list(SUBJECTS) == list(Focus)
    assert all(subject.focus is focus for focus, subject in SUBJECTS.items())


@pytest.mark.parametrize("focus", Focus)
def test_what_is_drawn_has_the_subject(focus: Focus) -> None:
    found = drawn_of(focus)
    having = with_subject(focus)

    assert len(found) >= 10
    if focus in LOOKS_PLAIN:
        assert not having
        other = {Focus.VARYING} if focus is Focus.TRAFFIC else set()
        assert all(traits(case) <= {Focus.PLAIN, *other} for case in found)
    else:
        assert len(having) > len(found) / 2


@pytest.mark.parametrize("focus", Focus)
def test_nothing_is_drawn_beyond_the_claims(focus: Focus) -> None:
    for limits in (REFERENCE, WIDE):
        for claim in limits.capabilities.schedules:
            if not is_claimed(focus, claim, limits.capabilities):
                with pytest.raises(ValueError, match="not claimed"):
                    cases(limits, claim, focus)


@pytest.mark.parametrize("focus", Focus)
def test_it_is_claimed_by_who_claims_everything_but_not_without_what_it_needs(focus: Focus) -> None:
    subject = SUBJECTS[focus]
    trained = ScheduleClaim(name="V", placement=Placement.V, stages_per_rank=(1, 2), split_backward=True)
    evaluated = ScheduleClaim(name="F", trains=False)

    assert is_claimed(focus, trained, EVERYTHING)
    for needed in subject.needs:
        assert not is_claimed(focus, trained, _without(needed))
    if subject.trains or subject.mistaken or subject.is_parallel:
        assert not is_claimed(focus, evaluated, EVERYTHING)


def _without(feature):
    return dataclasses.replace(EVERYTHING, features=EVERYTHING.features - {feature})


@pytest.mark.parametrize("focus", Focus)
def test_a_subject_has_a_control_or_says_why_not(focus: Focus) -> None:
    subject = SUBJECTS[focus]

    assert bool(subject.control) != bool(subject.no_control)
    if subject.no_control:
        assert all(subject.control_of(case) is None for case in drawn_of(focus))
    else:
        assert subject.control.startswith("with")
        assert with_subject(focus)


def controls(focus: Focus) -> Iterator[tuple[Case, tuple[str, Case]]]:
    """Every control of the drawn cases that have the subject."""
    for case in with_subject(focus):
        yield from ((case, pair) for pair in SUBJECTS[focus].controls_of(case))


@pytest.mark.parametrize("focus", WITH_CONTROL)
def test_a_control_can_be_made_plain(focus: Focus) -> None:
    """Whatever else is special in it can be taken out, too, unless that has no control."""
    for _, (words, control) in controls(focus):
        plain, changes = plainer(control, words=words)

        assert changes.startswith(words)
        assert all(SUBJECTS[one].control_of(plain) in (None, plain) for one in traits(plain))


@pytest.mark.parametrize("focus", WITH_CONTROL)
def test_a_control_is_the_same_case_without_the_subject(focus: Focus) -> None:
    subject = SUBJECTS[focus]
    assert all(subject.control_of(case) is not None for case in with_subject(focus))
    for case, (words, control) in controls(focus):
        assert words.startswith("with")
        if focus in TOGETHER:  # without one part of several, other pairs are left
            assert set(pairs_in(case)) - set(pairs_in(control))
        else:
            assert focus not in traits(control)
            assert subject.control_of(control) is None
        assert (control.schedule, control.seed) == (case.schedule, case.seed)
        assert (control.num_ranks, control.stages_per_rank) == (case.num_ranks, case.stages_per_rank)
        assert {run.num_microbatches for run in control.runs} <= {run.num_microbatches for run in case.runs}
        if subject.alters != "batch sizes":
            assert {run.batch_size for run in control.runs} <= {run.batch_size for run in case.runs}
        if subject.alters != "dtype":
            assert control.model.dtype == case.model.dtype
        assert (control.model.width, control.model.sequence) == (case.model.width, case.model.sequence)
        assert (control.loss.reduction == case.loss.reduction) or focus is Focus.SUM


@pytest.mark.parametrize("focus", WITH_CONTROL)
def test_a_control_can_be_run(focus: Focus) -> None:
    for _, (_, control) in controls(focus):
        assert decode_case(encode_case(control)) == control
        assert sizes_of_cases.bounded(control, source="here") is control
        assert not control.is_mistaken
        assert control.num_stages == control.num_ranks * control.stages_per_rank
        for stage in control.model.stages:
            assert not stage.blocks or any(isinstance(block, MAPS) for block in stage.blocks)
        assert any(not stage.frozen for stage in control.model.stages)
        for step, after in itertools.pairwise(control.program):
            assert step != after or not hasattr(step, "set_to_none"), "cleared twice"


def test_the_control_of_accumulation_sets_no_gradient_to_zero() -> None:
    """An engine to which that does nothing would accumulate in the control, too, and the control would be accused."""
    cases = with_subject(Focus.ACCUMULATE)
    controls = [SUBJECTS[Focus.ACCUMULATE].without(case) for case in cases]

    assert any(step == Zero(set_to_none=False) for case in cases for step in case.program)
    assert not any(step == Zero(set_to_none=False) for case in controls for step in case.program)


def test_a_case_without_the_subject_has_no_control() -> None:
    assert all(subject.control_of(small_case()) is None for subject in SUBJECTS.values())


def test_a_subject_that_is_silent_about_its_control_is_refused() -> None:
    with pytest.raises(AssertionError, match="plain"):
        Subject(focus=Focus.PLAIN)
    with pytest.raises(AssertionError, match="plain"):
        Subject(focus=Focus.PLAIN, control="without", no_control="none")


@pytest.mark.parametrize("focus", Focus)
def test_mistakes_are_made_by_mistaken_subjects_alone(focus: Focus) -> None:
    assert {case.is_mistaken for case in drawn_of(focus)} == {SUBJECTS[focus].mistaken}


def test_claims_and_names_of_subjects_need_neither_torch_nor_hypothesis() -> None:
    code = (
        "import sys, pipeconform.case.draw.claimed, pipeconform.case.draw.traits, pipeconform.case.draw.cases; "
        "print({'torch', 'hypothesis'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout.strip() == "set()"


def test_a_checkpointed_block_leaves_its_map_and_its_dropout_behind() -> None:
    found = [case for case in with_subject(Focus.CHECKPOINT) if case.draws_masks]

    assert found
    for case in found:
        control = SUBJECTS[Focus.CHECKPOINT].control_of(case)
        assert control is not None
        assert control.has(blocks.Dropout)


@pytest.mark.parametrize("focus", [Focus.BOUNDARY, Focus.NO_GRAD])
def test_several_tensors_without_a_container_for_them_are_no_claim(focus):
    claim = ScheduleClaim(name="GPipe")
    several = BoundaryClaim(max_tensors=4, no_grad_tensors=True)
    held = dataclasses.replace(several, containers=("tensor", "tuple"))

    assert not is_claimed(focus, claim, Capabilities(schedules=(claim,), boundary=several))
    assert is_claimed(focus, claim, Capabilities(schedules=(claim,), boundary=held))


def digests(focus: Focus) -> list[str]:
    """Of the cases that are drawn, of their controls, and of these made plain."""
    pairs = list(controls(focus))
    plain = (plainer(control, words=words) for _, (words, control) in pairs)
    return [
        _digest(case.digest for case in drawn_of(focus)),
        _digest(f"{words} {control.digest}" for _, (words, control) in pairs),
        _digest(f"{changes} {case.digest}" for case, changes in plain),
    ]


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


@pytest.mark.parametrize("focus", Focus)
def test_the_same_cases_controls_and_plainer_cases_are_drawn_as_ever(focus: Focus) -> None:
    known = json.loads(DRAWN.read_text())[focus]

    assert digests(focus) == known, "if that is meant, run 'python -m tests.case.draw.test_subjects'"


if __name__ == "__main__":
    rows = (f'"{focus}": {json.dumps(digests(focus))}' for focus in Focus)
    DRAWN.write_text("{\n" + ",\n".join(rows) + "\n}\n")
