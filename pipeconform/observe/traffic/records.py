"""Recorded communication as plain data."""

from __future__ import annotations

from typing import Literal

import msgspec

from pipeconform.ranks.operations import Moment, Operation

__all__ = ["Arrived", "Cargo", "Traffic"]


class Cargo(msgspec.Struct, frozen=True, array_like=True):
    """What an operation carries, recognised by its memory; see `cargo`."""

    what: Literal["input", "output", "input gradient", "output gradient"]
    """A receive brings an input or the gradient of an output; a send takes one of the others away."""
    stage: int
    forward: int
    """The position among all forwards that the rank ran in the operation's step, dry runs included, from 0."""


class Arrived(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """For one forward, whether operations of its step brought its inputs to the rank; see `contents`."""

    step: int
    stage: int
    forward: int
    """The position among all forwards that the rank ran in the step, dry runs included, from 0."""
    tensors: tuple[bool, ...]
    """Per tensor among the inputs, in order."""


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """All communication of one rank, from before `build` to after `close`."""

    groups: dict[str, tuple[int, ...]] = {}
    """The members of every group that was used, as ranks of the world in the group's order."""
    given: str | None = None
    """The group that the plan gave to the pipeline; None in a single-process pipeline."""
    default: str | None = None
    """The default group."""
    operations: tuple[Operation, ...] = ()
    moments: tuple[Moment, ...] = ()
    """In the order in which they happened."""
    overwritten: tuple[int, ...] = ()
    """Operations whose memory changed between issue and wait, other than by the operation itself."""
    cargo: dict[int, Cargo] = {}
    """What operations carry, by number, if it was recognised."""
    arrived: tuple[Arrived, ...] = ()
    """For the forwards that ran, which of their inputs came by an operation."""
