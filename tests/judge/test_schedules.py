"""Each judgement of chapter SCH on executions made by hand: silent on what is right, precise on what is not."""

import dataclasses

import pytest
from msgspec import structs

from pipeconform.adapter import Placement, ScheduleClaim
from pipeconform.errors import UsageError
from pipeconform.judge import schedules
from pipeconform.judge.evidence import Evidence
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.schedule import Kind, generate, to_csv
from tests.facts import tells
from tests.judge.executions import evidence, words

everything_once = JUDGEMENTS["SCH-1"].judge
order_is_the_named_one = JUDGEMENTS["SCH-2"].judge
in_flight_is_bounded = JUDGEMENTS["SCH-3"].judge
placement_is_kept = JUDGEMENTS["SCH-7"].judge
declared_is_executed = JUDGEMENTS["SCH-8"].judge

SIZES = [(2, 1, 4), (3, 1, 2), (2, 2, 4), (1, 2, 2), (2, 3, 4), (4, 2, 8)]
FAMILIES = ("gpipe", "one_f_one_b", "interleaved_one_f_one_b", "looped_bfs", "interleaved_zero_bubble")
V_FAMILIES = ("zb_v", "v_half", "v_min", "dualpipe_v")


def _cases():
    for p, v, m in SIZES:
        for name in (*FAMILIES, *V_FAMILIES):
            try:
                table = generate(name, num_ranks=p, stages_per_rank=v, num_microbatches=m)
            except UsageError:
                continue
            yield pytest.param(name, table, v, id=f"{name}-{p}-{v}-{m}")


def _of(table, v, name, **others) -> Evidence:
    placement = Placement.V if name in V_FAMILIES else Placement.LOOP
    texts = others.pop("texts", None) or words(table)
    m, declared = table.num_microbatches, others.pop("declared", None)
    return evidence(*texts, m=m, v=v, family=name, placement=placement, table=declared, **others)


def _kinds(judge, made) -> set[str]:
    return {finding.kind for finding in judge(made)}


@pytest.mark.parametrize(("name", "table", "v"), [*_cases()])
def test_every_familys_own_table_meets_every_requirement(name, table, v):
    made = _of(table, v, name, declared=to_csv(table))

    for judge in (
        everything_once,
        order_is_the_named_one,
        in_flight_is_bounded,
        placement_is_kept,
        declared_is_executed,
    ):
        assert list(judge(made)) == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1F0 1B0 1F1", "no B or I"),
        ("1F0 1B0", "no F"),
        ("1F0 1F1 1F1 1B0 1B1", "several F"),
        ("1F0 1F1 1B0 1B1 1B0", "several B or I"),
        ("1F0 1F1 1I0 1B1", "no W"),
        ("1F0 1F1 1I0 1W0 1B1 1W0", "several W"),
        ("1F0 1F1 1W0 1I0 1B1", "W before I"),
        ("1F0 1F99 1F1 1B0 1B1", "a forward of no microbatch"),
        ("1B0 1F0 1F1 1B0 1B1", "a backward of another step"),
    ],
)
def test_what_runs_too_often_too_seldom_or_too_early_is_found(text, kind):
    made = evidence("0F0 0F1 0B0 0B1", text, m=2)

    assert kind in _kinds(everything_once, made)


def test_a_finding_names_rank_stage_and_microbatch():
    (found,) = everything_once(evidence("0F0 0F1 0B0 0B1", "1F0 1F1 1I0 1W0 1I1", m=2))

    assert (found.kind, found.step, found.rank, found.stage, found.microbatch) == ("no W", 0, 1, 1, 1)
    assert tells(found.message, "stage 1", "microbatch 1", "I", "no W")


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("1F0 1B0 1F1", 3),  # a backward is missing: the end
        ("1F0 1F1 1F1 1B0 1B1", 2),
        ("1F0 1F1 1B0 1B1 1B0", 4),
        ("1F0 1F1 1I0 1W0 1B1 1W0", 5),
        ("1F0 1F1 1W0 1I0 1B1", 2),
    ],
)
def test_a_finding_points_at_the_first_wrong_computation(text, position):
    found = next(everything_once(evidence("0F0 0F1 0B0 0B1", text, m=2)))

    assert found.rank == 1
    assert found.position == position


def test_a_stage_waits_for_the_one_before_it_on_the_same_rank():
    made = evidence("1F0 0F0 1B0 0B0", m=1, v=2)
    other = evidence("0F0 1F0 0B0 1B0", m=1, v=2)

    assert _kinds(everything_once, made) == {"F before F"}
    assert _kinds(everything_once, other) == {"B before B"}


def test_evaluation_has_no_backward():
    good = evidence("0f0 0f1", "1f0 1f1", m=2, trains=False)
    bad = evidence("0f0 0f1", "1F0 1F1 1B1", m=2, trains=False)

    assert list(everything_once(good)) == []
    assert _kinds(everything_once, bad) == {"a backward where none is due"}


@pytest.mark.parametrize("name", ["one_f_one_b", "zb_v", "interleaved_zero_bubble"])
def test_two_computations_in_the_other_order_are_another_schedule(name):
    v = 2 if name == "zb_v" else 1
    table = generate(name, num_ranks=2, stages_per_rank=v, num_microbatches=4)
    texts = words(table)
    last = texts[-1].split()
    i = next(i for i in range(len(last) - 1) if "F" not in last[i] and "F" in last[i + 1])
    last[i], last[i + 1] = last[i + 1], last[i]
    (found,) = order_is_the_named_one(_of(table, v, name, texts=[*texts[:-1], " ".join(last)]))

    assert found.kind == "not the named order"
    assert found.rank == 1
    assert f"computation {i}: {last[i]} where {last[i + 1]} is due" in found.message
    assert found.position == i


def test_a_computation_that_is_missing_at_the_end_is_pointed_at():
    made = evidence("0F0 0F1 0B0", "1F0 1F1 1B0 1B1", m=2, family="gpipe")

    (found,) = order_is_the_named_one(made)

    assert found.position == 3


def test_backwards_come_in_any_order_where_that_is_free():
    reversed_gpipe = evidence("0F0 0F1 0B1 0B0", "1F0 1F1 1B1 1B0", m=2, family="gpipe")
    reversed_1f1b = evidence("0F0 0F1 0B1 0B0", "1F0 1F1 1B1 1B0", m=2, family="one_f_one_b")

    assert list(order_is_the_named_one(reversed_gpipe)) == []
    assert _kinds(order_is_the_named_one, reversed_1f1b) == {"not the named order"}


@pytest.mark.parametrize("named", ["interleaved_one_f_one_b", "interleaved_one_f_one_b_megatron"])
@pytest.mark.parametrize("runs", ["interleaved_one_f_one_b", "interleaved_one_f_one_b_megatron"])
def test_either_warm_up_of_interleaved_1f1b_will_do_by_either_name(named, runs):
    """With as many microbatches as ranks the two are not the same."""
    other = named.removesuffix("_megatron") if named.endswith("_megatron") else f"{named}_megatron"
    table, different = (
        generate(name, num_ranks=2, stages_per_rank=2, num_microbatches=2) for name in (named, other)
    )
    assert table != different

    shown = _of(generate(runs, num_ranks=2, stages_per_rank=2, num_microbatches=2), 2, named)
    assert list(order_is_the_named_one(shown)) == []
    assert list(in_flight_is_bounded(shown)) == []


def test_stages_take_turns_freely_in_an_evaluation():
    by_stage = evidence("0f0 0f1 0f2 1f0 1f1 1f2", m=3, v=2, trains=False, family="forward_only")
    backwards = evidence("0f1 0f0 0f2 1f0 1f1 1f2", m=3, v=2, trains=False, family="forward_only")

    assert list(order_is_the_named_one(by_stage)) == []
    (found,) = order_is_the_named_one(backwards)
    assert (found.kind, found.rank, found.position) == ("not the named order", 0, 0)


def test_one_more_in_flight_is_one_too_many():
    texts = ("0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3", "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3")
    (found,) = in_flight_is_bounded(evidence(*texts, m=4, family="one_f_one_b"))

    assert (found.kind, found.rank, found.position) == ("too many in flight", 0, 2)
    assert tells(found.message, "rank 0", "3 microbatches", "W", "0F2")
    assert tells(found.message, "0F2", "bound", "1F1B", "2", "p=2", "v=1", "m=4")


def test_weights_that_wait_too_long_hold_their_microbatches():
    table = generate("zb_h1", num_ranks=2, stages_per_rank=1, num_microbatches=4)
    rank0, rank1 = words(table)
    late = " ".join(sorted(rank1.split(), key=lambda word: "W" in word))

    assert _kinds(in_flight_is_bounded, _of(table, 1, "zb_h1", texts=[rank0, late])) == {"too many in flight"}


def test_a_declared_table_is_held_to_the_bound_too():
    greedy = to_csv(generate("gpipe", num_ranks=2, stages_per_rank=1, num_microbatches=4))
    table = generate("one_f_one_b", num_ranks=2, stages_per_rank=1, num_microbatches=4)

    assert _kinds(in_flight_is_bounded, _of(table, 1, "one_f_one_b", declared=greedy)) == {
        "too many in flight, declared"
    }


def test_what_cannot_be_freed_visibly_is_not_counted():
    actions = tuple(generate("gpipe", num_ranks=1, stages_per_rank=1, num_microbatches=3)[0])
    parts = {(0, k): "W" for k in range(3)}

    assert schedules.most_in_flight(actions, parts, until=Kind.I) == (0, None)
    assert schedules.most_in_flight(actions, parts, until=Kind.W) == (3, actions[2])


def test_a_stage_on_another_rank_is_found():
    made = evidence("0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0", m=1, v=2)

    found = list(placement_is_kept(made))

    assert [(one.rank, one.stage) for one in found] == [(0, 3), (1, 2)]
    assert tells(found[0].message, "stage 3", "ran", "rank 0", "placed", "1")
    assert [one.position for one in found] == [1, 1]


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        (None, "declared table unreadable"),
        ("0F0,0F1,nonsense", "declared table unreadable"),
        ("0F0,0F1,0B0,0B1\n", "declared table of another size"),
        ("0F0,0F1,0B0,0B1\n1F1,1B0,1F2,1B1", "declared and executed differ"),
        ("0F0,0F1,0B0,0B1\n1F0,1F1,1B1,1B0", "declared and executed differ"),
    ],
)
def test_a_declared_table_must_be_readable_and_true(table, kind):
    made = evidence("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1", m=2, table=table)

    assert _kinds(declared_is_executed, made) == {kind}


def test_idle_slots_and_sharding_actions_of_a_declared_table_are_not_computations():
    table = "0F0,0F1,,,0B0,0B1,0REDUCE_GRAD\n,1F0,1F1,1B0,1B1,1REDUCE_GRAD"
    made = evidence("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1", m=2, table=table)

    assert list(declared_is_executed(made)) == []


def test_only_schedules_with_a_family_are_named():
    mirrored = ScheduleClaim(name="a", family="dualpipe", placement=Placement.MIRROR)

    assert schedules.is_named(ScheduleClaim(name="a", family="gpipe"))
    assert not schedules.is_named(ScheduleClaim(name="a"))
    assert schedules.is_named(mirrored)
    assert not schedules.is_named(mirrored, declared=True)


def mirrored(name, *, p, m, share=lambda chain, k, n: chain * n + k):
    """What ranks run that follow a table of two directions, in the contract's stages; `share` numbers microbatches."""
    table = generate(name, num_ranks=p, stages_per_rank=2, num_microbatches=m)

    def text(leaf):
        chain, stage = divmod(leaf.stage, p)
        return str(leaf._replace(stage=stage, microbatch=share(chain, leaf.microbatch, m // 2)))

    return [" ".join(text(leaf) for action in row for leaf in action.leaves) for row in table]


def two_directions(texts, name, m):
    return evidence(*texts, m=m, family=name, placement=Placement.MIRROR)


@pytest.mark.parametrize("share", [lambda chain, k, n: chain * n + k, lambda chain, k, n: 2 * k + 1 - chain])
@pytest.mark.parametrize(("name", "p", "m"), [("dualpipe", 2, 4), ("dualpipe", 4, 10), ("chimera", 4, 4)])
def test_tables_of_two_directions_meet_every_requirement_whoever_gets_which_microbatches(name, p, m, share):
    made = two_directions(mirrored(name, p=p, m=m, share=share), name, m)

    for judge in (order_is_the_named_one, in_flight_is_bounded, everything_once):
        assert list(judge(made)) == []


def test_another_order_of_two_directions_is_not_the_named_one():
    down, up = mirrored("dualpipe", p=2, m=4)
    late = " ".join(sorted(down.split(), key=lambda word: "F" not in word))
    found = list(order_is_the_named_one(two_directions([late, up], "dualpipe", 4)))

    assert [(one.kind, one.rank) for one in found] == [("not the named order", 0)]
    assert found[0].message.startswith("pipeline rank 0 does not run DualPipe: ")
    assert _kinds(in_flight_is_bounded, two_directions([late, up], "dualpipe", 4)) == {"too many in flight"}


def test_directions_that_run_the_same_microbatches_leave_others_out():
    texts = mirrored("dualpipe", p=2, m=4, share=lambda chain, k, n: k)

    assert {"no F", "several F"} <= _kinds(everything_once, two_directions(texts, "dualpipe", 4))


@pytest.mark.parametrize(
    ("name", "placement"),
    [("gpipe", Placement.MIRROR), ("dualpipe", Placement.LOOP), ("chimera", Placement.V)],
)
def test_a_family_and_a_placement_of_other_directions_are_refused(name, placement):
    with pytest.raises(
        ValueError, match=f"it: family '{name}' has the placement '.*', and the claim {placement}"
    ):
        ScheduleClaim(name="it", family=name, placement=placement)


def whole_at_once(table):
    """A table's computations on ranks whose stages compute their whole backward where the input part stands."""
    return [
        " ".join(str(a._replace(kind=Kind.B) if a.kind is Kind.I else a) for a in row if a.kind is not Kind.W)
        for row in table
    ]


def test_engines_that_only_split_deferred_weights_have_whole_backwards_at_the_input_part():
    table = generate("zb_h1", num_ranks=2, stages_per_rank=1, num_microbatches=4)
    texts, options = whole_at_once(table), {"m": 4, "family": "zb_h1"}
    late = [texts[0], " ".join(sorted(texts[1].split(), key=lambda word: "B" in word))]

    for judge in (order_is_the_named_one, in_flight_is_bounded, everything_once):
        assert list(judge(evidence(*texts, split_weights="deferred", **options))) == []
    assert _kinds(order_is_the_named_one, evidence(*texts, **options)) == {"not the named order"}
    assert _kinds(order_is_the_named_one, evidence(*late, split_weights="deferred", **options)) == {
        "not the named order"
    }
    assert _kinds(in_flight_is_bounded, evidence(*late, split_weights="deferred", **options)) == {
        "too many in flight"
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_a_table_that_one_rank_alone_declares_is_judged(rank):
    made = evidence(
        "0F0 0F1 0B0 0B1",
        "1F0 1B0 1F1 1B1",
        m=2,
        family="one_f_one_b",
        table=to_csv(generate("gpipe", num_ranks=2, num_microbatches=2)),
    )
    shown = tuple(structs.replace(one, table=one.table if one.rank == rank else None) for one in made.shown)
    found = JUDGEMENTS["SCH-3"].judge(dataclasses.replace(made, shown=shown))

    assert {(one.kind, one.rank) for one in found if "declared" in one.kind} == {
        ("too many in flight, declared", rank)
    }
