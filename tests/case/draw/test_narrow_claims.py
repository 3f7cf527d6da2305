"""Whoever claims less of one thing gets cases without it, and the same cases as ever.

For every narrowing, narrowed.json remembers a digest of what is claimed and drawn: results and certificates name their
corpora, and most implementations do not claim everything. Where another drawing is meant, run
``python -m tests.case.draw.test_narrow_claims``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pipeconform.adapter import (
    Capabilities,
    ClippingClaim,
    DataParallelClaim,
    Feature,
    Placement,
    ScheduleClaim,
)
from pipeconform.case import blocks
from pipeconform.case.case import Case, Sgd
from pipeconform.case.draw.cases import draw_case
from pipeconform.case.draw.claimed import is_claimed, reachable
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.case.draw.traits import traits
from pipeconform.case.focus import Focus, Limits
from pipeconform.case.replicas import Replicas
from tests.case.draw.drawn import choosing
from tests.case.examples import EVERYTHING
from tests.selected import first_of_each

KNOWN = Path(__file__).with_name("narrowed.json")
SCHEDULES = (
    ScheduleClaim(name="Loop", stages_per_rank=(1, 2)),
    ScheduleClaim(name="V", placement=Placement.V, stages_per_rank=(2,), split_backward=True),
    ScheduleClaim(name="Evaluation", trains=False),
)
ALL = replace(EVERYTHING, schedules=SCHEDULES)
BOUNDARY, TRACING, REPLICATED, CUT = ALL.boundary, ALL.tracing, ALL.data_parallel, ALL.tensor_parallel
assert TRACING is not None
assert REPLICATED is not None
assert CUT is not None
OPTIONS = REPLICATED.options
TIES = frozenset({Feature.SHARED_ACROSS_STAGES, Feature.SHARED_ACROSS_RANKS})


def _replicated(**changes: object) -> Capabilities:
    return replace(ALL, data_parallel=replace(REPLICATED, **changes))


NARROWED: Mapping[str, Capabilities] = {
    "nothing less": ALL,
    **{f"without {one}": replace(ALL, features=ALL.features - {one}) for one in sorted(Feature)},
    **{f"only {one}": replace(ALL, features=frozenset({one})) for one in sorted(Feature)},
    "only ties of stages": replace(ALL, features=TIES),
    "only unused parameters, in replicas without options": replace(
        _replicated(options=()), features=frozenset({Feature.UNUSED_PARAMETERS})
    ),
    **{
        f"boundaries with {name} {value}": replace(ALL, boundary=replace(BOUNDARY, **{name: value}))
        for name, value in (
            ("max_tensors", 1),
            ("max_tensors", 2),
            ("max_tensors", 3),
            ("containers", ("tensor",)),
            ("containers", ("tensor", "list")),
            ("dtypes", ("float32",)),
            ("dtypes", ("float64",)),
            ("dtypes", ("float32", "bfloat16")),
            ("min_ndim", 1),
            ("min_ndim", 3),
            ("max_ndim", 2),
            ("max_ndim", 4),
            ("no_grad_tensors", False),
            ("non_float_tensors", False),
            ("empty_tensors", False),
            ("complex_tensors", False),
            ("inputs", 1),
            ("differ", False),
        )
    },
    **{
        f"{name} {value}": replace(ALL, **{name: value})
        for name, value in (
            ("reductions", ("mean",)),
            ("reductions", ("sum",)),
            ("losses", ("mse",)),
            ("losses", ("cross_entropy",)),
            ("optimizers", ("sgd",)),
            ("sub_groups", False),
            ("mode_from", "gradients"),
            ("tied_stages", "ends"),
            ("computed_by", "graphs"),
            ("kwargs_scope", "stage"),
            ("kwargs_scope", "pipeline"),
            ("tracing", None),
            ("data_parallel", None),
            ("tensor_parallel", None),
        )
    },
    **{
        f"front ends with {name} {value}": replace(ALL, tracing=replace(TRACING, **{name: value}))
        for name, value in (
            ("splits", ("annotations",)),
            ("splits", ("policy",)),
            ("splits", ("points",)),
            ("kwargs", "none"),
            ("kwargs", "first_stage"),
            ("number_kwargs", False),
            ("skips", False),
            ("tied", False),
            ("knows_boundaries", False),
        )
    },
    **{
        f"replicas without {one}": _replicated(options=tuple(o for o in OPTIONS if o != one))
        for one in OPTIONS
    },
    **{f"replicas in {one} only": _replicated(wrappers=(one,)) for one in REPLICATED.wrappers},
    **{
        f"clipping with {name} {value}": replace(ALL, clipping=ClippingClaim(**{name: value}))
        for name, value in (
            ("norms", ("two",)),
            ("norms", ()),
            ("dtypes", ("float32",)),
            ("dtypes", ("bfloat16",)),
        )
    },
    "replicas without options": _replicated(options=()),
    "replicas without accumulation": _replicated(accumulation=False),
    "replicas without synchronised norms": _replicated(synchronised_norms=False),
    "plain replicas without features": replace(ALL, data_parallel=DataParallelClaim(), features=frozenset()),
    **{
        f"cut stages with {name} {value}": replace(ALL, tensor_parallel=replace(CUT, **{name: value}))
        for name, value in (
            ("maps", ("column",)),
            ("maps", ()),
            ("sequence", False),
            ("sharded", False),
            ("boundaries", ()),
            ("boundaries", ("width",)),
        )
    },
}


def _drawn(capabilities: Capabilities) -> Iterator[tuple[ScheduleClaim, Focus, Case]]:
    """A case of everything that is claimed, under every schedule."""
    limits = Limits(capabilities=capabilities, max_ranks=4)
    for claim in capabilities.schedules:
        for number, focus in enumerate(Focus):
            if is_claimed(focus, claim, capabilities) and reachable(limits, claim, focus):
                yield claim, focus, draw_case(Drawing(choosing(number), limits, claim), SUBJECTS[focus])


def _digest(capabilities: Capabilities) -> str:
    lines = (f"{claim.name} {focus} {case.digest}" for claim, focus, case in _drawn(capabilities))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


@pytest.mark.parametrize("name", NARROWED)
def test_nothing_is_drawn_that_is_not_claimed(name: str) -> None:
    capabilities = NARROWED[name]
    for claim, focus, case in _drawn(capabilities):
        own = capabilities.under(claim)
        # where every loss is a sum, evaluations have sums, too, which are a subject of training
        about = traits(case) - ({Focus.SUM} if own.reductions == ("sum",) else set())
        assert all(is_claimed(one, claim, capabilities) for one in about), focus
        assert case.loss.kind in own.losses
        assert case.loss.reduction in own.reductions
        assert own.computed_by == "modules" or not (
            case.world.perturbations
            or {"forward", "backward", "output", "gradient"} & {one.where for one in case.mistakes}
        )
        hooked = case.has(blocks.Hooked, blocks.GradientHooked, blocks.InputHooked)
        assert own.computed_by == "modules" or not (hooked or case.world.recompute)
        assert own.tied_stages == "any" or case.model.tied in ((), (0, case.num_stages - 1))
        assert case.model.container in own.boundary.containers
        # claims of their own, whatever the dtypes of everything else
        has_copies = isinstance(case.optimizer, Sgd) and case.optimizer.masters
        assert has_copies or case.model.sums_in_float32 or case.model.dtype in own.boundary.dtypes
        assert case.model.split is None or (own.tracing and case.model.split.by in own.tracing.splits)
        _assert_claimed(case.world.replicas, own.data_parallel)


def _assert_claimed(replicas: Replicas | None, own: DataParallelClaim | None) -> None:
    if replicas is None:
        return
    assert own is not None
    assert replicas.wrapper in own.wrappers
    for option in OPTIONS:
        assert option in own.options or not getattr(replicas, option)


@pytest.mark.parametrize("name", first_of_each({name: name for name in NARROWED}, lambda _: None))
def test_the_same_cases_are_drawn_as_ever(name: str) -> None:
    known = json.loads(KNOWN.read_text())[name]

    assert _digest(NARROWED[name]) == known, (
        "if that is meant, run 'python -m tests.case.draw.test_narrow_claims'"
    )


if __name__ == "__main__":
    KNOWN.write_text(json.dumps({name: _digest(one) for name, one in NARROWED.items()}, indent=0) + "\n")
