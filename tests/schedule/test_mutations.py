"""No random damage gets past the verifier, and nothing harmless is rejected: a second opinion agrees."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeconform.schedule import Delivery, Rule, Table, generate, lower, verify, with_waits
from pipeconform.schedule.dependencies import locate, needs
from pipeconform.schedule.progress import run_programs
from pipeconform.schedule.waiting import UNORDERED, with_queues, without_queues

MANY = settings(max_examples=250, deadline=None, database=None, derandomize=True)

TABLES = [
    generate(name, num_ranks=p, stages_per_rank=v, num_microbatches=m)
    for name, p, v, m in (
        ("one_f_one_b", 3, 1, 4),
        ("interleaved_one_f_one_b", 2, 2, 4),
        ("zb_h1", 3, 1, 4),
        ("zb_v", 2, 2, 3),
        ("dualpipe_v", 2, 2, 4),
        ("chimera", 4, 2, 4),
    )
]
LOWERED = [lower(table, receives=when) for table in TABLES for when in ("early", "late")]
TABLES += [*LOWERED, *map(with_waits, LOWERED)]


@st.composite
def mutants(draw):
    """A correct table with one to three swaps of near actions, or one action dropped, doubled or moved."""
    table = draw(st.sampled_from(TABLES))
    ranks = [list(actions) for actions in table]
    kind = draw(st.sampled_from(["swap", "swap", "drop", "double", "move"]))
    for _ in range(draw(st.integers(1, 3)) if kind == "swap" else 1):
        rank = draw(st.integers(0, table.num_ranks - 1))
        actions = ranks[rank]
        at = draw(st.integers(0, len(actions) - 2))
        if kind == "swap":
            to = min(len(actions) - 1, at + draw(st.integers(1, 4)))
            actions[at], actions[to] = actions[to], actions[at]
        elif kind == "drop":
            del actions[at]
        elif kind == "double":
            actions.insert(draw(st.integers(0, len(actions))), actions[at])
        else:
            other = draw(st.integers(0, table.num_ranks - 1).filter(lambda r, rank=rank: r != rank))
            ranks[other].insert(draw(st.integers(0, len(ranks[other]))), actions.pop(at))
    mutant = Table.build(
        ranks,
        placement=table.placement,
        num_microbatches=table.num_microbatches,
        num_chains=table.num_chains,
    )
    return kind, table.has_communication, mutant


@MANY
@given(mutants())
def test_dropped_doubled_and_moved_actions_are_always_found(drawn):
    kind, communicates, mutant = drawn

    assert kind == "swap" or verify(mutant, communication=communicates)


@MANY
@given(mutants())
def test_verdicts_agree_with_a_second_opinion(second_opinion, drawn):
    """SCH-1, SCH-5: accepted exactly if complete and running under all four deliveries."""
    _, communicates, mutant = drawn

    found = verify(mutant, communication=communicates)
    complete, *runs = second_opinion(mutant)

    assert (complete and all(runs)) == (found == ())
    if complete and communicates and not any(v.rule is Rule.ORDER for v in found):
        forbidden = {v.delivery for v in found if v.rule is Rule.DEADLOCK}
        assert {delivery for delivery, ran in zip(Delivery, runs, strict=True) if not ran} == forbidden


@MANY
@given(mutants())
def test_the_two_ways_to_find_deadlocks_agree(drawn):
    """Where neither batches nor order ask for queues, queues change nothing."""
    mutant = drawn[2]
    index = locate(mutant)
    needed = needs(index)
    rule_breaking = [v for v in verify(mutant, communication=drawn[1]) if v.rule is not Rule.DEADLOCK]

    for delivery in UNORDERED if drawn[1] and not rule_breaking else ():
        ways = [way(index, needed, delivery=delivery) for way in (with_queues, without_queues)]
        ranks = mutant.num_ranks
        ends = [
            run_programs(way.offsets.tolist(), way.one.tolist(), way.two.tolist())[0][:ranks] for way in ways
        ]
        assert ends[0] == ends[1]
