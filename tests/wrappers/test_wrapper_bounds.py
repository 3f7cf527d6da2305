"""How far a wrapper's values may be from the oracle's: as far as another order of the same sums, and no further."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import torch
from msgspec import structs

from pipeconform.bounds.gauge import Gauge
from pipeconform.case.wrapper_case import Pass, Step, WrapperCase
from pipeconform.observe.array import Array
from pipeconform.sharding import Sharding
from pipeconform.wrapper import WrapOptions, WrapperClaims
from pipeconform.wrappers.doubt import Doubt
from pipeconform.wrappers.evidence import evidence_of
from pipeconform.wrappers.judge import is_right
from pipeconform.wrappers.judge_sharded import trains_like_ddp
from pipeconform.wrappers.modules import batch_of, build, objective
from pipeconform.wrappers.observation import Expected, PassShown, Question, Shown, StepShown
from pipeconform.wrappers.oracle import expected_of
from pipeconform.wrappers.precision import run_in
from pipeconform.wrappers.reduction import added, mean_of, mean_with_earlier

THREE = WrapperCase(ranks=3, steps=(Step(), Step(zero="keep"), Step(passes=(Pass(sync="no"), Pass()))))


def right(case: WrapperCase, *, bounded: bool = False) -> Expected:
    return expected_of(Question(case=case, before=(), unbroken=True, bounded=bounded))


def shown(case: WrapperCase) -> tuple[Shown, ...]:
    """What ranks show whose wrapper computes exactly what the oracle does."""
    answer = right(case)

    def of(rank: int) -> Shown:
        steps, before = [], answer.initial[rank]
        for passes, after in zip(answer.steps, answer.after, strict=True):
            own = tuple(
                PassShown(gradients=one.gradients[rank], outputs=one.outputs[rank], skeleton=one.skeleton)
                for one in passes
            )
            steps.append(StepShown(before=before, passes=own, after=after[rank]))
            before = after[rank]
        return Shown(rank=rank, initial=answer.initial[rank], steps=tuple(steps), final=before, beside=before)

    return tuple(map(of, range(case.ranks)))


def judged(case, ranks, judge=is_right, gauge=None):
    evidence = evidence_of(case, tuple(ranks), claims=WrapperClaims(), ask=expected_of, gauge=gauge)
    return [finding.kind for finding in judge(evidence)]


def moved(value: Array, bound: Array, *, outside: bool) -> Array:
    """The value with its first element moved upwards as far as the bound allows, or one number further."""
    numbers = np.frombuffer(value.data, np.float64).copy()
    most = np.frombuffer(bound.data, np.float64)[0]
    assert 0 < most < 1e-12
    start = last = numbers[0]
    while np.nextafter(last, np.inf) - start <= most:
        last = np.nextafter(last, np.inf)
    numbers[0] = np.nextafter(last, np.inf) if outside else last
    return Array(value.dtype, value.shape, numbers.tobytes())


def with_step(one: Shown, index: int, step: StepShown) -> Shown:
    return structs.replace(one, steps=(*one.steps[:index], step, *one.steps[index + 1 :]))


@pytest.mark.parametrize(("outside", "found"), [(False, []), (True, ["gradient differs"])])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_gradient_may_be_as_far_away_as_another_order_and_no_number_further(index, outside, found):
    ranks, gauge = list(shown(THREE)), Gauge()
    name, number = "enter.weight", len(THREE.steps[index].passes) - 1
    question = Question(
        case=THREE,
        before=tuple(tuple(one.steps[i].before for one in ranks) for i in range(3)),
        bounded=True,
    )
    bound = expected_of(question).steps[index][number].gradient_bounds[1][name]
    step = ranks[1].steps[index]
    own = step.passes[number]
    gradient = moved(own.gradients[name], bound, outside=outside)
    spoilt = structs.replace(own, gradients={**own.gradients, name: gradient})
    ranks[1] = with_step(
        ranks[1],
        index,
        structs.replace(step, passes=(*step.passes[:number], spoilt, *step.passes[number + 1 :])),
    )

    assert judged(THREE, ranks, gauge=gauge) == found
    if not found:
        assert 0.5 < gauge.worst <= 1


@pytest.mark.parametrize(("device_type", "found"), [("cuda", []), ("cpu", ["gradient differs"])])
def test_kernels_of_other_devices_may_round_sixteen_bits_after_every_operation(
    device_type, found, monkeypatch
):
    """What two ranks on an H200 showed: torch's backward of tanh rounds three times there, and once on the CPU."""
    options = WrapOptions(param_dtype="bfloat16", reduce_dtype="float32", broadcast_buffers=False)
    case = WrapperCase(module="mixed", options=options)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "tanh", _Tanh.apply)
        ranks = shown(case)
    assert ranks[0].steps[0].passes[0].gradients["enter.weight"].tensor()[0, 0] == 0.07224273681640625

    ask = functools.partial(expected_of, device_type=device_type)
    evidence = evidence_of(case, ranks, claims=WrapperClaims(), ask=ask)
    assert sorted({finding.kind for finding in is_right(evidence)}) == found


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * (1 - y * y)


@pytest.mark.parametrize(("outside", "found"), [(False, ["replicas apart"]), (True, ["state differs"])])
def test_a_state_may_be_as_far_away_but_must_be_the_same_on_every_rank(outside, found):
    case = WrapperCase(ranks=3, steps=(Step(),))
    ranks = list(shown(case))
    bound = right(case, bounded=True).after_bounds[0][2]["leave.bias"]
    step = ranks[2].steps[0]
    value = moved(step.after["leave.bias"], bound, outside=outside)
    ranks[2] = with_step(ranks[2], 0, structs.replace(step, after={**step.after, "leave.bias": value}))

    assert judged(case, ranks) == found


SHARDED = WrapperCase(
    module="blocks", optimizer="adam", options=WrapOptions(sharding=Sharding()), steps=(Step(),) * 3
)


@pytest.mark.parametrize(("outside", "found"), [(False, []), (True, ["trained apart"])])
def test_a_whole_training_may_end_as_far_from_ddps_as_its_own_analysis_allows(outside, found):
    ranks = list(shown(SHARDED))
    bound = right(SHARDED, bounded=True).after_bounds[-1][0]["enter.weight"]
    beside = moved(ranks[0].beside["enter.weight"], bound, outside=outside)
    ranks[0] = structs.replace(ranks[0], beside={**ranks[0].beside, "enter.weight": beside})

    assert judged(SHARDED, ranks, judge=trains_like_ddp) == found


def test_no_bound_is_asked_for_where_bits_are_equal():
    asked = []

    def ask(question):
        asked.append(question.bounded)
        return expected_of(question)

    assert list(is_right(evidence_of(THREE, shown(THREE), claims=WrapperClaims(), ask=ask))) == []
    assert asked == [False]


# ------------------------------------------------------------------------------------------- the sums themselves


def drawn(ranks, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(40, generator=generator, dtype=torch.float64).to(dtype) for _ in range(ranks)]


def in_any_way(parts, earlier, *, dtype):
    """The mean of `parts` and an earlier one, computed in `dtype` in every order, divided before or after."""
    ranks = len(parts)
    narrow = [part.to(dtype) for part in parts]
    for order in itertools.permutations(range(ranks)):
        chosen = [narrow[i] for i in order]
        yield earlier + (sum(chosen[1:], chosen[0]) / ranks).to(parts[0].dtype)
        halves = [part / ranks for part in chosen]
        yield earlier + sum(halves[1:], halves[0]).to(parts[0].dtype)
        if dtype == parts[0].dtype:
            again = [earlier + part for part in chosen]  # a kept gradient is reduced again
            yield sum(again[1:], again[0]) / ranks
            yield sum((one * (1 / ranks) for one in again[1:]), again[0] * (1 / ranks))


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        (WrapperCase(), torch.float64),
        (WrapperCase(hook="bfloat16"), torch.bfloat16),
        (WrapperCase(hook="float16"), torch.float16),
        (WrapperCase(options=WrapOptions(reduce_dtype="float32")), torch.float32),
        (WrapperCase(options=WrapOptions(param_dtype="bfloat16", reduce_dtype="float32")), torch.float32),
        (WrapperCase(options=WrapOptions(param_dtype="bfloat16")), torch.bfloat16),
    ],
    ids=lambda value: "" if isinstance(value, WrapperCase) else str(value).removeprefix("torch."),
)
def test_every_order_of_a_reduction_keeps_the_bound_and_a_coarser_dtype_does_not(case, dtype, ranks):
    parts, (earlier, *_) = drawn(ranks, 3), drawn(1, 4)
    doubt = Doubt.of(case)
    with doubt.analysis:
        mean = mean_of(case, parts, factor=1 / ranks, doubt=doubt)
        total = mean_with_earlier(case, mean, earlier.clone(), ranks=ranks, doubt=doubt)
    bound = doubt.analysis.bound(total)

    for other in in_any_way(parts, earlier, dtype=dtype):
        assert bool(((other - total).abs() <= bound).all())
    plain = mean_of(case, parts, factor=1 / ranks, doubt=Doubt()) + earlier
    assert bool(((plain - total).abs() <= bound).all())
    if torch.finfo(dtype).bits > 16:
        coarser = sum(part.to(torch.bfloat16) for part in parts).double() / ranks + earlier
        assert bool(((coarser - total).abs() > bound).any())


def test_passes_may_be_added_up_in_the_dtype_of_the_computation_and_in_none_that_is_coarser():
    case = WrapperCase(options=WrapOptions(param_dtype="float32", reduce_dtype="float32"))
    one, other = drawn(2, 5, torch.float32)
    doubt = Doubt.of(case)
    with doubt.analysis:
        total = added(case, one.double(), other.double(), doubt=doubt)
    bound = doubt.analysis.bound(total)

    assert bool((((one + other).double() - total).abs() <= bound).all())
    assert bool(((one.double() + other.double() - total).abs() <= bound).all())
    assert bool((((one.bfloat16() + other.bfloat16()).double() - total).abs() > bound).any())


_IN_16_BITS = WrapOptions(sharding=Sharding(), param_dtype="bfloat16", reduce_dtype="float32")


@pytest.mark.parametrize(
    "case",
    [
        WrapperCase(module="blocks", options=_IN_16_BITS, steps=(Step(),)),
        WrapperCase(module="dtypes", steps=(Step(),)),
        WrapperCase(module="single", steps=(Step(),)),
    ],
    ids=lambda case: case.module,
)
def test_a_missing_reduction_exceeds_bounds_also_in_few_bits_and_over_many_terms(case):
    expected = right(case, bounded=True).steps[0][0]
    batch = batch_of(case, rank=0, step=0, index=0, forward=0)
    alone = build(case, rank=0)
    if case.options.param_dtype is not None:
        alone, batch = alone.bfloat16(), batch.bfloat16()
    objective(case, [alone(batch)], [batch]).backward()

    for name, parameter in alone.named_parameters():
        distance = (parameter.grad.double() - expected.gradients[0][name].tensor()).abs()
        assert bool((distance > 3 * expected.gradient_bounds[0][name].tensor()).any()), name


def test_parameters_that_are_left_to_the_user_compute_in_their_own_dtype():
    options = WrapOptions(sharding=Sharding(), param_dtype="bfloat16", ignored=("apart.weight", "apart.bias"))
    module = build(WrapperCase(module="apart", options=options), rank=0)
    seen = {}
    for name, part in module.named_children():
        part.register_forward_hook(lambda part, given, output, name=name: seen.update({name: output.dtype}))

    run_in(options, module, torch.ones(3, 4, dtype=torch.float64))

    assert seen["apart"] == torch.float64
    assert seen["enter"] == seen["leave"] == torch.bfloat16
