"""Somebody who forges a package and its manifest still has to make every number agree."""

import msgspec
import pytest

from pipeconform.certificate.checks import check_contents
from pipeconform.certificate.contents import claims_of_result, digest_of
from pipeconform.certificate.decision import reasons_against, weakening
from pipeconform.report.result import Expectations
from pipeconform.spec import certification_level, mandatory
from tests.certificate.conftest import violated
from tests.facts import tells

LEVEL = certification_level("forward")
IDS = [row.id for row in mandatory(LEVEL)]


def replaced(value, **fields):
    return msgspec.structs.replace(value, **fields)


def with_result(contents, **fields):
    return replaced(contents, result=replaced(contents.result, **fields))


def with_run(contents, **fields):
    return with_result(contents, run=replaced(contents.result.run, **fields))


def with_engine(contents, index, **fields):
    """One component of the engine changed."""
    engine = list(contents.certificate.engine)
    engine[index] = replaced(engine[index], **fields)
    return with_certificate(contents, engine=tuple(engine))


def with_cell(contents, **fields):
    """The first cell changed."""
    first, *others = contents.result.cells
    return with_result(contents, cells=(replaced(first, **fields), *others))


def with_certificate(contents, **fields):
    return replaced(contents, certificate=replaced(contents.certificate, **fields))


def doubts(contents):
    return [str(doubt) for doubt in check_contents(contents).doubts]


def test_a_sound_package_raises_no_doubt(contents):
    checked = check_contents(contents)

    assert (checked.doubts, checked.reasons, checked.granted) == ((), (), True)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda c: with_result(c, standard_version="0.0"),
            "result.json: standard_version: 0.0, out of date or too new",
        ),
        (
            lambda c: with_result(c, rules=c.result.rules | {"FWD-1": "000000000000"}),
            "result.json: rules: differ from the rules of this version: FWD-1",
        ),
        (
            lambda c: with_result(c, rules={}),
            "result.json: rules: differ from the rules of this version: COM-7, FWD-1",
        ),
        (lambda c: with_run(c, seed=1), "result.json: run.seed: 1, but a certification for this level has 0"),
        (
            lambda c: with_run(c, corpus=1),
            "result.json: run.corpus: 1 cases drawn, but level Forward demands",
        ),
        (lambda c: with_run(c, max_ranks=2), "result.json: run.max_ranks: 2, but level Forward demands 3"),
        (
            lambda c: with_result(c, expectations=Expectations(file="x.toml", digest="", entries=1)),
            "result.json: expectations: expected failures were allowed",
        ),
        (lambda c: with_cell(c, counts={"p=2,v=1": 5}), "cells.counts: FWD-1 under GPipe: the counts do not"),
        (
            lambda c: with_cell(c, distinct_cases=9),
            "cells.distinct_cases: FWD-1 under GPipe: more distinct cases than judgements",
        ),
        (
            lambda c: with_result(c, cells=c.result.cells[1:]),
            "result.json: cells: FWD-1 under GPipe is missing; the level judges it, or gives a reason why not",
        ),
        (
            lambda c: with_result(c, cells=(*c.result.cells, c.result.cells[0])),
            "cells: FWD-1 under GPipe (default) appears 2 times",
        ),
        (lambda c: replaced(c, judged=c.judged[1:]), "judged.json: FWD-1 under GPipe is missing"),
        (lambda c: replaced(c, judged=(*c.judged, c.judged[0])), "judged.json: a cell is listed twice"),
        (
            lambda c: replaced(
                c, canaries=tuple(one for one in c.canaries if one.fault != "stale-activation")
            ),
            "canaries.json: fault: stale-activation was not tried, which FWD-1 must notice",
        ),
        (
            lambda c: replaced(c, canaries=()),
            "canaries.json: fault: first-part was not tried, which FWD-22 must notice",
        ),
        (
            lambda c: replaced(c, canaries=(replaced(c.canaries[0], detected=False), *c.canaries[1:])),
            " was not detected: FWD-",
        ),
        (
            lambda c: with_certificate(c, implementation="another"),
            "certificate.json: implementation: 'another', but result.json says 'toy GPipe'",
        ),
        (lambda c: with_certificate(c, version="2.0"), "certificate.json: version: '2.0', but"),
        (lambda c: with_certificate(c, source_digest="00"), "certificate.json: source_digest: '00', but"),
        (
            lambda c: replaced(c, others=c.others | {"adapter/mine.py": b"other"}),
            "adapter/mine.py: not the source named in certificate.json (source_digest)",
        ),
        (
            lambda c: replaced(c, others={"logs/summary.txt": b""}),
            "adapter/mine.py: the adapter's source is missing",
        ),
        (
            lambda c: replaced(c, environment=()),
            "environment.json: environment: differs from the environment in result.json",
        ),
        (
            lambda c: replaced(c, environment=c.environment * 2),
            "environment.json: 2 machines, but certificate.json says 1 shard",
        ),
        (
            lambda c: with_result(c, created="yesterday"),
            "result.json: created: 'yesterday' is not a time such as 2026-01-02T03:04:05+00:00",
        ),
        (
            lambda c: with_engine(c, 0, files=0),
            "certificate.json: engine: mine: 0 files cannot have the digest '1111",
        ),
        (
            lambda c: with_engine(c, 1, digest="none"),
            "certificate.json: engine: torch: 9 files cannot have the digest 'none'",
        ),
        (
            lambda c: with_engine(c, 1, kind="tree"),
            "certificate.json: engine: torch: impossible: a tree of version",
        ),
        (
            lambda c: with_engine(c, 0, name="zebra"),
            "certificate.json: engine: names are blank, repeated or not in order",
        ),
        (lambda c: with_certificate(c, level="gold"), "certificate.json: level: unknown level 'gold'"),
        (
            lambda c: with_certificate(c, granted=False, reasons=("a whim",)),
            "certificate.json: granted: says refused, but by the result the level is deserved",
        ),
    ],
)
def test_every_doubt_is_named_with_file_and_field(contents, change, expected):
    found = doubts(change(contents))

    assert [text for text in found if expected in text] != [], found


def test_a_level_that_this_version_does_not_have_is_named(contents, monkeypatch):
    monkeypatch.setattr("pipeconform.spec.levels.missing", lambda level: ("DPC-99",))

    found = doubts(with_certificate(contents, level="data-parallel"))

    assert [
        text for text in found if "level: level Data-parallel is not available in this version" in text
    ] != []


def test_a_missing_or_exchanged_case_is_named(contents):
    first, second, *_ = contents.cases
    less = {digest: data for digest, data in contents.cases.items() if digest != first}

    assert f"cases/{first}.json: missing, though the level judges it" in doubts(
        replaced(contents, cases=less)
    )
    exchanged = contents.cases | {first: contents.cases[second]}
    (doubt,) = doubts(replaced(contents, cases=exchanged))
    assert tells(doubt, f"cases/{first}.json", "differs")
    doubt, *_ = doubts(replaced(contents, cases=contents.cases | {"beef": b"{"}))
    assert tells(doubt, "cases/beef.json", "not drawn")


def test_a_failure_that_is_counted_as_expected_is_no_pass(contents, make):
    violation = make.violation("FWD-1", "GPipe", expected="x.toml:3")
    checked = check_contents(with_cell(contents, status="failed", violations=(violation,)))

    assert "cells.violations.expected: FWD-1 under GPipe counts a failure as expected" in str(
        checked.doubts[0]
    )
    assert checked.reasons == ("FWD-1 failed under GPipe",)


def test_a_certificate_that_claims_more_than_its_result_is_caught(contents, make):
    failed = violated(make, contents)
    (found,) = doubts(replaced(failed, certificate=contents.certificate))

    assert tells(found, "certificate.json", "granted", "says granted", "not deserved")


def test_a_violation_of_another_case_or_with_silent_ranks_is_caught(contents, make):
    violation = make.violation("FWD-1", "GPipe", verdicts="rank 0  returned")
    violation = replaced(violation, digest="0" * 12)
    found = doubts(with_cell(contents, status="failed", violations=(violation,)))

    assert any("is not the digest of its case" in text for text in found)
    assert any("1 of 2 ranks reported" in text for text in found)


def reasons(contents):
    return reasons_against(LEVEL, contents.result)


def test_what_is_sound_deserves_its_level(contents):
    assert reasons(contents) == ()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda c: with_run(c, complete=False), "the run was cut short"),
        (lambda c: with_cell(c, status="flaky"), "FWD-1 flaky under GPipe"),
        (lambda c: with_cell(c, status="skipped", judgements=0), "FWD-1 skipped under GPipe"),
        (lambda c: with_cell(c, status="error"), "FWD-1 error under GPipe"),
        (lambda c: with_cell(c, judgements=0), "FWD-1 under GPipe is called passed, but was not judged so"),
        (lambda c: with_cell(c, compared=0), "FWD-1 under GPipe is called passed, but compared nothing"),
        (lambda c: with_cell(c, status="nothing_compared"), "FWD-1 nothing compared under GPipe"),
        (
            lambda c: with_cell(c, distinct_cases=1),
            f"FWD-1 under GPipe was judged on 1 distinct cases, at least {LEVEL.examples} are needed",
        ),
        (lambda c: with_result(c, cells=c.result.cells[1:]), "FWD-1 is missing under GPipe"),
        (
            lambda c: with_result(c, implementation=replaced(c.result.implementation, capabilities=None)),
            "the claims of the implementation cannot be read",
        ),
    ],
)
def test_every_reason_against_a_level_is_told(contents, change, expected):
    assert expected in reasons(change(contents))


def without(contents, name, *, returned=()):
    claims = contents.result.implementation.capabilities
    left = [feature for feature in claims["features"] if feature != name]
    found = with_result(
        contents,
        implementation=replaced(contents.result.implementation, capabilities={**claims, "features": left}),
    )
    return changed_cells(found, lambda cell: replaced(cell, unclaimed=returned))


def test_a_level_cannot_be_had_without_the_claims_that_it_needs(contents):
    """Outputs that are returned in silence are told, and do not stand for the claim."""
    (silent,) = reasons(without(contents, "outputs"))
    (returned,) = reasons(without(contents, "outputs", returned=("outputs",)))
    needed = ("level Forward", "without this claim", "Feature.OUTPUTS")

    assert tells(silent, *needed)
    assert not tells(silent, *needed, "returned")
    assert tells(returned, *needed, "returned", "to be claimed")


def test_what_a_result_of_an_earlier_format_compared_is_not_known(contents):
    """A package is verified as it was made."""
    uncounted = changed_cells(contents, lambda cell: replaced(cell, compared=0))

    assert reasons(with_result(uncounted, format=5)) == ()
    assert reasons(uncounted)


def changed_cells(contents, change):
    return with_result(contents, cells=tuple(map(change, contents.result.cells)))


def test_a_core_requirement_cannot_be_left_unclaimed(contents):
    (found,) = reasons(
        changed_cells(
            contents,
            lambda cell: (
                replaced(cell, status="not_claimed", judgements=0) if cell.requirement == "FWD-1" else cell
            ),
        )
    )

    assert tells(found, "FWD-1", "not claimed under any schedule", "cannot be left out")


def test_a_share_of_the_others_may_be_left_unclaimed_and_no_more(contents):
    def without(number):
        left_out = set(IDS[1 : number + 1])
        return reasons(
            changed_cells(
                contents,
                lambda cell: (
                    replaced(cell, status="not_claimed", judgements=0)
                    if cell.requirement in left_out
                    else cell
                ),
            )
        )

    most = int(LEVEL.not_claimed * len(IDS))

    assert without(most) == ()
    assert f"{most + 1} of {len(IDS)} requirements are not claimed" in without(most + 1)[0]


def test_a_requirement_claimed_under_one_schedule_counts_as_claimed(contents):
    found = reasons(
        changed_cells(
            contents,
            lambda cell: (
                replaced(cell, status="not_claimed", judgements=0)
                if (cell.requirement, cell.schedule) == ("FWD-1", "GPipe")
                else cell
            ),
        )
    )

    assert found == ()


def test_sizes_that_were_never_judged_are_named_by_schedule(contents):
    few = changed_cells(
        contents, lambda cell: replaced(cell, counts={"p=2,v=1": 6}, microbatches={"more": 6})
    )

    for name, reason in zip(("GPipe", "1F1B"), reasons(few), strict=True):
        assert tells(reason, name, "never judged", "p = 1", "p = 3", "m = 1", "m < p", "m = p")
        assert not any(tells(reason, judged) for judged in ("p = 2", "m > p"))


def test_one_rank_is_no_pipeline(contents):
    single = changed_cells(contents, lambda cell: replaced(cell, counts={"p=1,v=1": 6}))

    assert "nothing was judged on more than one rank" in reasons(single)


def claiming(contents, **claims):
    """The implementation with other claims."""
    one = contents.result.implementation
    claimed = with_result(contents, implementation=replaced(one, capabilities={**one.capabilities, **claims}))
    return with_certificate(claimed, claims_digest=digest_of(claims_of_result(claimed.result)))


def test_claims_with_which_less_is_seen_are_on_the_certificate(contents):
    claimed = claiming(contents, inputs_consumed_by="all")

    (doubt,) = doubts(claimed)
    assert tells(doubt, "certificate.json", "weakening", "()", "result.json", 'inputs_consumed_by="all"')
    assert doubts(with_certificate(claimed, weakening=weakening(claimed.result))) == []
    assert doubts(with_certificate(contents, weakening=("made up",))) != []


def test_who_claims_the_whole_world_only_says_so_on_the_certificate(contents):
    assert not weakening(claiming(contents, sub_groups=True).result)
    (said,) = weakening(claiming(contents, sub_groups=False).result)
    assert tells(said, "sub_groups=False", "whole world")


@pytest.mark.parametrize("claims", [{"inputs_consumed_by": "all"}, {"targets_consumed_by": "all"}])
def test_who_claims_to_be_given_everything_is_seen_to_communicate_under_every_schedule(contents, claims):
    def unclaimed(cell):
        if (cell.requirement, cell.schedule) != ("COM-7", "GPipe"):
            return cell
        return replaced(
            cell, status="not_claimed", judgements=0, distinct_cases=0, counts={}, microbatches={}
        )

    assert reasons(claiming(contents, **claims)) == ()
    assert reasons(changed_cells(contents, unclaimed)) == ()
    (reason,) = reasons(claiming(changed_cells(contents, unclaimed), **claims))
    assert tells(reason, "claimed", "consumed by all ranks", "COM-7", "not met under GPipe")
    assert "1F1B" not in reason
