"""Profiles: how much a run does."""

from __future__ import annotations

import msgspec

from pipeconform.errors import UnknownNameError

__all__ = ["Profile", "profile", "profiles"]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """How many cases a run draws, and what it spends on shrinking a failing one."""

    name: str
    summary: str
    corpus: int
    """Cases per focus and schedule, judged by every requirement that applies."""
    search: int
    """Further cases per requirement and schedule, searched by Hypothesis beyond the corpus."""
    costly: int
    """Like `corpus`, for requirements whose cases cost ten times as much: replicas, traced and compiled stages."""
    wrapper_search: int
    """Like `search`, for wrappers, whose listed cases are few and cheap."""
    shrink_cost: int
    """What making one counter-example small may cost, in executions that only compute wrong values: those that end in
    an error, a crash or a hang cost more. Time does not count, so that a busy machine finds the same small cases."""
    cell_cost: int
    """The same for all counter-examples of one requirement under one schedule together."""
    later_cost: int
    """The same under every schedule but the first, which already shows most violations."""
    varied: tuple[str, ...] | None = ()
    """Chapters that are also judged under the environment variants of the implementation; None: all."""
    leaves_out: tuple[str, ...] = ()
    """Chapters that are judged only if the user names them."""
    every_member: bool = False
    """Whether a subject that has members gets a case of each under every schedule, if that is more than `corpus`."""
    whole_grids: bool = False
    """Whether all combinations of a wrapper's options are run; if not, only so many that every two options meet."""
    schedules: int | None = None
    """Under how many schedules, 1 or 2, to judge what does not depend on the schedule; None: under all."""


_FULL = Profile(
    name="full",
    summary="for a night: as many cases as it allows",
    corpus=60,
    search=60,
    costly=60,
    wrapper_search=60,
    shrink_cost=2000,
    cell_cost=6000,
    later_cost=6000,
    varied=None,
    every_member=True,
)

_PROFILES = (
    Profile(
        name="smoke",
        summary="for every commit: a few cases of everything but errors",
        corpus=2,
        search=0,
        costly=2,
        wrapper_search=0,
        shrink_cost=20,
        cell_cost=30,
        later_cost=10,
        varied=("ERR",),
        leaves_out=("ERR",),
        schedules=1,
    ),
    Profile(
        name="core",
        summary="the default: every subject, under every schedule that matters to it",
        corpus=6,
        search=0,
        costly=3,
        wrapper_search=8,
        shrink_cost=100,
        cell_cost=150,
        later_cost=40,
        varied=("ERR",),
        schedules=2,
    ),
    Profile(
        name="certify",
        summary="used by 'pipeconform certify'; the level sets the number of cases",
        corpus=8,
        search=0,
        costly=8,
        wrapper_search=0,
        shrink_cost=100,
        cell_cost=300,
        later_cost=300,
    ),
    _FULL,
    msgspec.structs.replace(
        _FULL,
        name="exhaustive",
        summary="for hours: like full, with every combination of a sharding wrapper's options",
        whole_grids=True,
    ),
)


def profiles() -> tuple[Profile, ...]:
    """All profiles, smallest first."""
    return _PROFILES


def profile(name: str) -> Profile:
    """The profile called `name`.

    Raises:
        UnknownNameError: there is none.
    """
    for one in _PROFILES:
        if one.name == name:
            return one
    raise UnknownNameError(
        "profile", name, [one.name for one in _PROFILES], listed_by="pipeconform list --profiles"
    )
