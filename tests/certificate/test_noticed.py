"""What a canary of a package must have shown."""

import msgspec
import pytest

from pipeconform.certificate.noticed import canary_doubts
from pipeconform.spec import certification_level, mandatory


@pytest.fixture
def said(contents):
    """The doubts about a package in which every canary of COM-1 showed what is given."""

    def doubts(fault, *shown, device="cpu"):
        of_level = contents.canaries[0]
        made = []
        for name in ("leftover-send", "leftover-receive", "longer-receive", "dtype-reinterpreted"):
            one = msgspec.structs.replace(of_level, fault=name, requirement="COM-1", schedule="1F1B")
            made.append(msgspec.structs.replace(one, shown=shown if name == fault else ("failed: traffic",)))
        environment = msgspec.structs.replace(contents.result.environment, device=device)
        result = msgspec.structs.replace(contents.result, environment=environment)
        asked = msgspec.structs.replace(contents, result=result, canaries=tuple(made))
        return [text for text in map(str, canary_doubts(["COM-1"], asked)) if fault in text]

    return doubts


@pytest.mark.parametrize("fault", ["leftover-send", "longer-receive", "dtype-reinterpreted"])
def test_the_expected_status_is_accepted(said, fault):
    assert said(fault, "error: raised ValueError", "failed: traffic") == []


def test_a_hang_is_accepted_of_a_fault_that_hangs_on_devices_and_only_there(said):
    assert said("leftover-receive", "hung: hang", device="cuda") == []
    (doubt,) = said("leftover-receive", "hung: hang")
    assert "leftover-receive was detected by 'failed', but that is not among what it showed" in doubt
    (doubt,) = said("dtype-reinterpreted", "hung: hang", device="cuda")
    assert "dtype-reinterpreted was detected by 'failed', but that is not among what it showed" in doubt


@pytest.mark.parametrize("shown", [(), ("error: raised ValueError",), ("crashed: SIGABRT",)])
def test_anything_else_is_doubted(said, shown):
    (doubt,) = said("leftover-receive", *shown)
    assert "is not among what it showed" in doubt


ROWS = [row.id for row in mandatory(certification_level("forward"))]


def doubts(contents):
    return [str(doubt) for doubt in canary_doubts(ROWS, contents)]


def with_canary(contents, **fields):
    """The first canary changed."""
    first, *others = contents.canaries
    return msgspec.structs.replace(contents, canaries=(msgspec.structs.replace(first, **fields), *others))


def test_every_fault_is_tried_once_and_no_other(contents):
    first, second, *others = contents.canaries

    def of(*canaries):
        return doubts(msgspec.structs.replace(contents, canaries=canaries))

    assert of(first, second, *others) == []
    assert of(second, *others) == [
        f"canaries.json: fault: {first.fault} was not tried, which {first.requirement} must notice"
    ]
    assert of(first, *others) == [
        f"canaries.json: fault: {second.fault} was not tried, which {second.requirement} must notice"
    ]
    assert of(first, second, *others, first) == [f"canaries.json: fault: {first.fault} appears 2 times"]
    strange = msgspec.structs.replace(first, fault="made-up")
    assert of(first, second, *others, strange) == [
        "canaries.json: fault: 'made-up' is not a fault that this level runs"
    ]


@pytest.mark.parametrize("field", ["requirement", "schedule", "expected", "run_id"])
def test_what_is_known_of_a_fault_is_repeated_rightly(contents, field):
    first = contents.canaries[0]
    found = doubts(with_canary(contents, **{field: "another"}))

    told = f"canaries.json: {field}: {first.fault}: 'another', expected {getattr(first, field)!r}"
    assert found[0] == told
    # by another status than the expected one it was not detected
    assert len(found) == 1 + (field == "expected")


def test_a_fault_that_is_not_detected_is_told_with_who_would_have_to(contents):
    first = contents.canaries[0]

    assert doubts(with_canary(contents, detected=False, shown=())) == [
        f"canaries.json: detected: {first.fault} was not detected: {first.requirement} would not have noticed it here"
    ]


@pytest.mark.parametrize(
    ("shown", "is_plain"),
    [
        (("{0}: output value",), True),
        (("{0}: output value", "error: raised ValueError"), True),
        (("{0}: output value", "hung: hang"), True),
        (("{0}: output value",) * 2, False),
        (("{0}: output value", "passed: x"), False),
        (("{0}: output value", "error:"), False),
        (("{0}: output value", "error: \x1b[2J"), False),
        (("{0}: output value", "error: a\nb"), False),
    ],
)
def test_a_fault_shows_statuses_and_signatures_each_once(contents, shown, is_plain):
    first = contents.canaries[0]
    found = doubts(with_canary(contents, shown=tuple(one.format(first.expected) for one in shown)))

    assert len(found) == (not is_plain)
    if not is_plain:
        assert f"shown: {first.fault} showed something else than statuses and signatures" in found[0]


@pytest.mark.parametrize(
    ("seconds", "is_right"), [(0.0, True), (-0.1, False), (float("inf"), False), (float("nan"), False)]
)
def test_a_trial_takes_some_time(contents, seconds, is_right):
    assert len(doubts(with_canary(contents, seconds=seconds))) == (not is_right)


def test_on_every_machine_every_fault_is_tried(contents, shard):
    """Of two shards each has its own canaries, with the id of its run."""
    halves = [shard(number) for number in (1, 2)]
    certificate = msgspec.structs.replace(
        contents.certificate, shards=2, run_ids=tuple(one.certificate.run_ids[0] for one in halves)
    )

    def of(*canaries):
        return doubts(msgspec.structs.replace(contents, certificate=certificate, canaries=canaries))

    one, two = (half.canaries for half in halves)
    assert of(*one, *two) == []
    for number, less in ((1, (*one[1:], *two)), (2, (*one, *two[:-1]))):
        (doubt,) = of(*less)
        assert f" was not tried (shard {number}/2), which " in doubt
    (doubt,) = of(*one, *two, one[0])
    assert doubt.endswith(f"{one[0].fault} appears 2 times (shard 1/2)")
    swapped = [
        msgspec.structs.replace(one, shard={"1/2": "2/2", "2/2": "1/2"}[one.shard]) for one in (*one, *two)
    ]
    assert {doubt.partition(": ")[2].partition(":")[0] for doubt in of(*swapped)} == {"run_id"}


def test_canaries_of_shards_are_of_the_shards_of_their_package(contents, shard):
    whole, half = contents.canaries, shard(1).canaries
    certificate = msgspec.structs.replace(contents.certificate, shards=1)
    mixed = msgspec.structs.replace(contents, certificate=certificate, canaries=(*whole, *half))

    found = doubts(mixed)
    assert "canaries.json: shard: from a whole run, not from shards" in found
    assert "canaries.json: shard: '1/2' is not a shard of this package" in found
    alone = shard(1)
    assert doubts(alone) == []
    assert "canaries.json: shard: '2/2' is not a shard of this package" in doubts(
        msgspec.structs.replace(alone, canaries=(*alone.canaries, *shard(2).canaries))
    )
