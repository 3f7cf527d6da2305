"""Simpler cases are claimed, each is simpler than what it was made from by one order, and some keep their subject.

A subject may come into a case when something is taken out of it, such as accumulation when a step that clears is.
"""

from __future__ import annotations

import functools
import itertools

import msgspec
import pytest
from pipeconform.reference_impl.adapter import ReferenceAdapter

from pipeconform.adapter import GradientScale
from pipeconform.campaign.corpus import Corpus, drawn
from pipeconform.case.blocks import Attention, Decoder, Linear, Mlp, Norm
from pipeconform.case.case import (
    Case,
    Eval,
    Kwarg,
    Model,
    Stage,
    Train,
    World,
    Zero,
    decode_case,
    encode_case,
)
from pipeconform.case.draw.claimed import is_claimed, reachable
from pipeconform.case.draw.traits import traits
from pipeconform.case.focus import Focus, Limits
from pipeconform.case.replicas import Replicas
from pipeconform.case.simpler.candidates import PARTS, leaps, simpler, weight
from pipeconform.case.simpler.contents import smaller_tensors
from pipeconform.case.simpler.scope import Scope
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.oracle.full_model import reference

REFERENCE = ReferenceAdapter().describe().capabilities
LIMITS = Limits(capabilities=REFERENCE, max_ranks=4)
SCHEDULES = ("1F1B", "ZBVZeroBubble", "Interleaved1F1B")
CUTS = 12


def _corpora(focus: Focus, size: int = 2) -> list[Corpus]:
    claims = [claim for claim in REFERENCE.schedules if claim.name in SCHEDULES]
    return [
        Corpus(limits=LIMITS, schedule=claim, focus=focus, seed=3, size=size)
        for claim in claims
        if is_claimed(focus, claim, REFERENCE) and reachable(LIMITS, claim, focus)
    ]


def _allowed(corpus: Corpus, case: Case):
    scope = Scope(limits=corpus.limits, claim=corpus.schedule, focus=corpus.focus)
    return lambda one: scope.holds(one, origin=case)


def _kept(judgement, corpus: Corpus, case: Case):
    allowed = _allowed(corpus, case)
    return lambda one: judgement.applies(one) and allowed(one)


@functools.cache
def _walk(corpus: Corpus, case: Case) -> list[tuple[Case, Case]]:
    """Leaps, and cases on a way of single cuts that takes the last of the first few; each with where it began."""
    allowed = _allowed(corpus, case)
    found = [(case, one) for one in leaps(case, allowed)]
    for part in itertools.islice(itertools.cycle(PARTS), CUTS):
        candidates = list(itertools.islice(simpler(case, part, allowed), 3))
        found += [(case, one) for one in candidates]
        case = candidates[-1] if candidates else case
    return found


@pytest.mark.parametrize("focus", Focus)
def test_candidates_are_claimed_and_simpler_than_what_they_were_made_from(focus: Focus) -> None:
    for corpus in _corpora(focus):
        claim = corpus.schedule
        for case in drawn(corpus):
            for before, one in _walk(corpus, case):
                assert decode_case(encode_case(one)) == one
                assert weight(one) < weight(before)
                assert all(is_claimed(trait, claim, REFERENCE) for trait in traits(one))
                for run in one.runs if focus is not Focus.EDGE else ():
                    assert claim.takes(
                        num_ranks=one.num_ranks,
                        stages_per_rank=one.stages_per_rank,
                        num_microbatches=run.num_microbatches,
                    )


def _read(value) -> int:
    """The number of values in what is written of a part."""
    if isinstance(value, dict):
        return sum(map(_read, value.values()))
    return sum(map(_read, value)) if isinstance(value, list | tuple) else 1


@pytest.mark.parametrize("focus", Focus)
def test_what_is_written_of_a_case_is_what_is_read_of_it(focus: Focus) -> None:
    for corpus in _corpora(focus):
        for case in drawn(corpus):
            told = (case.model, case.loss, case.program, case.optimizer, case.world)
            costly = sum(isinstance(block, Mlp | Attention | Decoder) for block in case.blocks())
            assert weight(case)[5] == sum(_read(msgspec.to_builtins(part)) for part in told) + costly


def test_parts_of_cut_maps_stay_equal() -> None:
    """Torch's case of DPC-7 became one of width 1 in two parts, of which DTensor, without a pipeline, replicates the
    gradient; so the reference, and any mended engine, violated DPC-7 too."""
    (corpus, *_) = _corpora(Focus.TENSOR, size=20)
    left = {
        one.model.width % one.world.num_tensor_ranks
        for case in drawn(corpus)
        for one in simpler(case, smaller_tensors, _allowed(corpus, case))
    }

    assert left == {0}


@pytest.mark.parametrize("focus", [focus for focus in Focus if focus is not Focus.COMPILED])
def test_the_oracle_computes_what_is_simpler(focus: Focus) -> None:
    for corpus in _corpora(focus)[:1]:
        for case in drawn(corpus):
            for _, one in _walk(corpus, case)[::4]:
                right = one.without_mistakes
                steps = reference(right, scale=GradientScale(at="loss")).steps
                assert len(steps) == len(one.program)


@pytest.mark.parametrize("identifier", JUDGEMENTS)
def test_a_leap_keeps_what_the_requirement_is_about(identifier: str) -> None:
    """Somewhere a case of every requirement becomes simpler without leaving it."""
    judgement = JUDGEMENTS[identifier]
    claims = [claim for claim in REFERENCE.schedules if claim.name in SCHEDULES]
    corpora = (
        Corpus(limits=LIMITS, schedule=claim, focus=focus, seed=0, size=3)
        for claim in claims
        for focus in judgement.foci(claim, REFERENCE)
        if reachable(LIMITS, claim, focus)
    )

    assert any(
        judgement.applies(one)
        for corpus in corpora
        for case in filter(judgement.applies, drawn(corpus))
        for one in leaps(case, _kept(judgement, corpus, case))
    )


def test_a_plain_case_leaps_to_the_plainest() -> None:
    stage = Stage(blocks=(Norm(), Attention(), Mlp()))
    step = Train(batch_size=12, num_microbatches=4)
    case = Case(
        model=Model(width=8, sequence=3, dtype="float32", stages=(stage,) * 4),
        schedule="1F1B",
        world=World(size=6, pipeline_ranks=(1, 2, 4, 5)),
        program=(step, Zero(), step),
        seed=9,
    )
    corpus = next(one for one in _corpora(Focus.PLAIN) if one.schedule.name == "1F1B")
    first, second, *_, last = leaps(case, _allowed(corpus, case))

    def plainest(p: int, m: int) -> Case:
        return Case(
            model=Model(width=2, stages=(Stage(blocks=(Linear(),)),) * p),
            schedule="1F1B",
            world=World(size=p, pipeline_ranks=tuple(range(p))),
            program=(Train(batch_size=m, num_microbatches=m),),
            seed=9,
        )

    assert first == plainest(1, 1)
    assert second == plainest(2, 2)
    assert last == msgspec.structs.replace(plainest(4, 4), world=case.world)


def test_decoders_become_linear_maps_but_for_what_the_requirement_is_about() -> None:
    """Whatever shows a violation: the layer in one stage stays, without keyword arguments and with one head of keys."""
    stage = Stage(blocks=(Decoder(kv_heads=2), Decoder()))
    step = Train(batch_size=12, num_microbatches=4)
    kwargs = tuple(Kwarg(stage=s, kind=kind) for s in range(2) for kind in ("positions", "mask"))
    case = Case(
        model=Model(width=8, sequence=3, stages=(stage, stage), kwargs=kwargs),
        schedule="1F1B",
        world=World(size=2, pipeline_ranks=(0, 1)),
        program=(step, Zero(), step),
    )
    corpus = next(one for one in _corpora(Focus.DECODERS) if one.schedule.name == "1F1B")
    _, second, *_ = leaps(case, _kept(JUDGEMENTS["FWD-29"], corpus, case))

    assert sorted(repr(block) for block in second.blocks()) == ["Decoder()", "Linear()"]
    assert second.model.kwargs == ()
    assert second.model.sequence == 1


def test_what_stands_by_and_what_comes_twice_goes_first() -> None:
    stage = Stage(blocks=(Linear(),))
    case = Case(
        model=Model(width=3, stages=(stage, stage)),
        schedule="1F1B",
        world=World(size=7, pipeline_ranks=(1, 2), replicas=Replicas(others=((3, 4), (5, 6)))),
        program=(Train(batch_size=4, num_microbatches=2),),
    )
    worlds = [one.world for one in PARTS[1](case)]

    assert World(size=6, pipeline_ranks=(0, 1), replicas=Replicas(others=((2, 3), (4, 5)))) in worlds
    assert World(size=5, pipeline_ranks=(1, 2), replicas=Replicas(others=((3, 4),))) in worlds


def test_steps_simpler_than_the_program_still_run_something() -> None:
    evaluate, train = Eval(batch_size=2, num_microbatches=1), Train(batch_size=2, num_microbatches=1)
    case = msgspec.structs.replace(
        Case(
            model=Model(width=3, stages=(Stage(blocks=(Linear(),)),)),
            schedule="1F1B",
            world=World(size=1, pipeline_ranks=(0,)),
            program=(train, evaluate, Zero(), train),
        )
    )
    programs = [one.program for one in PARTS[0](case)]

    assert programs[0] == (train,)
    assert (evaluate, Zero(), train) in programs
    assert all(not isinstance(program[0], Zero) for program in programs)
