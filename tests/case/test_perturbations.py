"""What befalls a case's ranks is part of the case: checked, printed, drawn inside limits, shrunk."""

import pytest
from hypothesis import HealthCheck, find, settings
from hypothesis import strategies as st
from msgspec import structs

from pipeconform.campaign.corpus import Corpus, drawn
from pipeconform.case.case import Eval, Split, decode_case, encode_case
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.strategies import picking
from pipeconform.case.draw.subjects import delayed
from pipeconform.case.draw.traits import traits
from pipeconform.case.focus import Focus, Limits
from pipeconform.case.perturbations import Perturbation, SlowLink
from pipeconform.errors import BadCaseError
from pipeconform.report.case_text import describe_perturbation
from pipeconform.report.html.case_picture import stage_notes
from pipeconform.report.html.program import facts_of
from tests.case.examples import EVERYTHING, small_case, with_model

LIMITS = Limits(capabilities=EVERYTHING)
QUICK = settings(
    max_examples=200, database=None, derandomize=True, suppress_health_check=list(HealthCheck), deadline=None
)


def perturbed(*perturbations, case=None):
    case = case or small_case()
    return structs.replace(case, world=structs.replace(case.world, perturbations=perturbations))


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (Perturbation(stage=2, milliseconds=1), "stage 2 is outside 0…1"),
        (Perturbation(stage=0, microbatch=2, milliseconds=1), "microbatch 2 is outside 0…1"),
        (Perturbation(stage=0, run=2, milliseconds=1), "run 2 is outside 0…1"),
        (Perturbation(stage=0), "lasts 0 ms"),
        (Perturbation(what="kill", stage=0, milliseconds=3), "lasts 3 ms"),
        (SlowLink(rank=2, milliseconds=1), "rank 2 is outside 0…1"),
        (SlowLink(rank=0, milliseconds=0), "lasts 0 ms"),
    ],
)
def test_what_cannot_happen_is_refused(one, said):
    with pytest.raises(BadCaseError, match=said):
        perturbed(one)


def test_the_stages_of_a_front_end_are_not_perturbed():
    whole = with_model(small_case(program=(Eval(batch_size=2, num_microbatches=1),)), split=Split())
    with pytest.raises(BadCaseError, match="a front end cannot be perturbed"):
        perturbed(Perturbation(stage=0, milliseconds=1), case=whole)


def test_perturbations_survive_the_file_and_a_case_without_any_keeps_its_digest():
    case = perturbed(Perturbation(stage=1, milliseconds=2), SlowLink(rank=0, milliseconds=5))

    assert decode_case(encode_case(case)) == case
    assert b"perturb" not in encode_case(small_case())
    assert traits(case) == {Focus.DELAYED}


WORDS = [
    (Perturbation(stage=1, milliseconds=5), "5 ms delay before the forward of stage 1, every microbatch"),
    (
        Perturbation(
            what="stop", stage=0, part="backward", when="after", microbatch=2, run=1, milliseconds=30
        ),
        "30 ms stop of the process after the backward of stage 0, microbatch 2, run 1",
    ),
    (
        Perturbation(what="kill", stage=0, microbatch=0),
        "SIGKILL before the forward of stage 0, microbatch 0",
    ),
    (
        Perturbation(what="error", stage=0, part="backward"),
        "exception before the backward of stage 0, every microbatch",
    ),
    (
        SlowLink(rank=1, side="receive", when="after", milliseconds=2),
        "2 ms delay after every receive of pipeline rank 1",
    ),
]


@pytest.mark.parametrize(("one", "words"), WORDS)
def test_a_perturbation_is_told_in_a_line(one, words):
    assert describe_perturbation(one) == words


def test_the_picture_notes_it_at_its_stage_and_the_facts_tell_it():
    case = perturbed(Perturbation(stage=1, milliseconds=5))

    assert stage_notes(case, 0) == ()
    assert stage_notes(case, 1) == ("delay before forward",)
    assert ("perturbed", WORDS[0][1]) in facts_of(case)


@pytest.mark.parametrize("claim", EVERYTHING.schedules, ids=lambda claim: claim.name)
def test_every_drawn_case_of_the_focus_is_perturbed_by_what_can_happen_there(claim):
    corpus = Corpus(limits=LIMITS, schedule=claim, focus=Focus.DELAYED, seed=0, size=40)
    found = [(case, one) for case in drawn(corpus) for one in case.world.perturbations]

    assert {case.digest for case, _ in found} == {case.digest for case in drawn(corpus)}
    assert {type(one) for _, one in found} == {Perturbation, SlowLink}
    assert all(case.num_ranks > 1 for case, one in found if isinstance(one, SlowLink))
    parts = {one.part for _, one in found if isinstance(one, Perturbation)}
    assert parts == ({"forward", "backward"} if claim.trains else {"forward"})


def test_every_kind_is_drawn_and_shrinks_to_its_simplest_form():
    @st.composite
    def kinds(draw):
        d = Drawing(picking(draw), LIMITS, EVERYTHING.schedules[0])
        d.num_ranks, d.stages_per_rank, d.num_microbatches = 2, 2, 3
        return delayed.perturbed(d, ("delay", "stop", "link", "error", "kill"))

    def smallest(what):
        return find(
            kinds(), lambda found: any(getattr(one, "what", "link") == what for one in found), settings=QUICK
        )

    assert smallest("delay") == (Perturbation(stage=0, milliseconds=2),)
    assert smallest("link") == (SlowLink(rank=0, milliseconds=2),)
    assert smallest("stop") == (Perturbation(what="stop", stage=0, microbatch=0, run=1, milliseconds=10),)
    assert smallest("error") == (Perturbation(what="error", stage=0, microbatch=0, run=1),)
    assert smallest("kill") == (Perturbation(what="kill", stage=0, microbatch=0, run=1),)
