"""Lowerings that are wrong on purpose: each turns a right lowered table into one that a rule forbids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeconform.schedule import Action, Delivery, Rule, Table, generate, lower

Ranks = list[list[Action]]


@dataclass(frozen=True, kw_only=True)
class LoweringFault:
    """One wrong lowering, and how the verifier tells it."""

    name: str
    summary: str
    change: Callable[[Ranks], None]
    """Changes the actions per rank in place."""
    rule: Rule
    tells: str
    """A regular expression that the message matches: it names the actions."""
    delivery: Delivery | None = None
    family: str = "one_f_one_b"
    v: int = 1

    def tables(self) -> tuple[Table, Table]:
        """The right table and the wrong one."""
        compute = generate(self.family, num_ranks=2, stages_per_rank=self.v, num_microbatches=3)
        right = lower(compute, receives="late")
        ranks = [list(actions) for actions in right]
        self.change(ranks)
        wrong = Table.build(ranks, placement=right.placement, num_microbatches=right.num_microbatches)
        return right, wrong


def _at(ranks: Ranks, text: str) -> tuple[list[Action], int]:
    action = Action.parse(text)
    actions = next(actions for actions in ranks if action in actions)
    return actions, actions.index(action)


def _drop(text: str) -> Callable[[Ranks], None]:
    def change(ranks: Ranks) -> None:
        actions, at = _at(ranks, text)
        del actions[at]

    return change


def _double(text: str) -> Callable[[Ranks], None]:
    def change(ranks: Ranks) -> None:
        actions, at = _at(ranks, text)
        actions.insert(at, actions[at])

    return change


def _swap(first: str, second: str) -> Callable[[Ranks], None]:
    def change(ranks: Ranks) -> None:
        actions, at = _at(ranks, first)
        _, other = _at(ranks, second)
        actions[at], actions[other] = actions[other], actions[at]

    return change


def _move(text: str, *, behind: str) -> Callable[[Ranks], None]:
    """To another place, on another rank perhaps."""

    def change(ranks: Ranks) -> None:
        actions, at = _at(ranks, text)
        action = actions.pop(at)
        actions, at = _at(ranks, behind)
        actions.insert(at + 1, action)

    return change


def _rename(text: str, other: str) -> Callable[[Ranks], None]:
    def change(ranks: Ranks) -> None:
        actions, at = _at(ranks, text)
        actions[at] = Action.parse(other)

    return change


def _add(text: str, *, behind: str) -> Callable[[Ranks], None]:
    def change(ranks: Ranks) -> None:
        actions, at = _at(ranks, behind)
        actions.insert(at + 1, Action.parse(text))

    return change


LOWERING_FAULTS = (
    LoweringFault(
        name="receive-missing",
        summary="A stage's input is never received.",
        change=_drop("1RECV_F1"),
        rule=Rule.MATCHING,
        tells="rank 1 never does 1RECV_F1",
    ),
    LoweringFault(
        name="send-missing",
        summary="A gradient is never sent.",
        change=_drop("1SEND_B2"),
        rule=Rule.MATCHING,
        tells="rank 1 never does 1SEND_B2",
    ),
    LoweringFault(
        name="receive-doubled",
        summary="An input is received twice.",
        change=_double("1RECV_F0"),
        rule=Rule.MATCHING,
        tells="2 times the same: 1RECV_F0",
    ),
    LoweringFault(
        name="send-doubled",
        summary="An output is sent twice.",
        change=_double("0SEND_F2"),
        rule=Rule.MATCHING,
        tells="2 times the same: 0SEND_F2",
    ),
    LoweringFault(
        name="wrong-peer",
        summary="A receive stands on the rank that sends.",
        change=_move("1RECV_F0", behind="0SEND_F0"),
        rule=Rule.PLACEMENT,
        tells="1RECV_F0 .*the placement gives this stage to rank 1",
    ),
    LoweringFault(
        name="wrong-microbatch",
        summary="A receive names another microbatch.",
        change=_rename("0RECV_B1", "0RECV_B2"),
        rule=Rule.MATCHING,
        tells="rank 0 never does 0RECV_B1",
    ),
    LoweringFault(
        name="wrong-direction",
        summary="A gradient is sent as if it were an output.",
        change=_rename("1SEND_B0", "1SEND_F0"),
        rule=Rule.MATCHING,
        tells="1SEND_F0 .*no other rank is at the other end",
    ),
    LoweringFault(
        name="no-such-microbatch",
        summary="A send counts microbatches from 1.",
        change=_rename("0SEND_F2", "0SEND_F3"),
        rule=Rule.RANGE,
        tells="0SEND_F3 .*there is no such microbatch",
    ),
    LoweringFault(
        name="receive-late",
        summary="An input is received after the forward that needs it.",
        change=_swap("1RECV_F1", "1F1"),
        rule=Rule.ORDER,
        tells="1F1 .*comes before 1RECV_F1",
    ),
    LoweringFault(
        name="send-early",
        summary="A gradient is sent before it is computed.",
        change=_swap("1B1", "1SEND_B1"),
        rule=Rule.ORDER,
        tells="1SEND_B1 .*comes before 1B1",
    ),
    LoweringFault(
        name="split-send-waits-for-weights",
        summary="A gradient is sent before its input part.",
        change=_swap("1I1", "1SEND_B1"),
        rule=Rule.ORDER,
        tells="1SEND_B1 .*comes before 1I1",
        family="zb_h1",
    ),
    LoweringFault(
        name="sends-swapped",
        summary="Two outputs are sent in the other order than they are received.",
        change=_move("0SEND_F0", behind="0SEND_F1"),
        rule=Rule.DEADLOCK,
        tells="0SEND_F1",
        delivery=Delivery.SYNCHRONOUS,
    ),
    LoweringFault(
        name="receives-swapped",
        summary="Two inputs are received in the other order than they are sent.",
        change=_swap("1RECV_F0", "1RECV_F1"),
        rule=Rule.ORDER,
        tells="1F0 .*comes before 1RECV_F0",
    ),
    LoweringFault(
        name="crossing-sends",
        summary="Neighbours send to each other at the same time, and neither receives before.",
        change=_move("1RECV_F1", behind="1SEND_B0"),
        rule=Rule.DEADLOCK,
        tells="0SEND_F1.*1SEND_B0|1SEND_B0.*0SEND_F1",
        delivery=Delivery.SYNCHRONOUS,
    ),
    LoweringFault(
        name="own-rank",
        summary="Neighbours on one rank send to each other.",
        change=_add("1SEND_F0", behind="1F0"),
        rule=Rule.MATCHING,
        tells="1SEND_F0 .*no other rank is at the other end",
        family="zb_v",
        v=2,
    ),
)
