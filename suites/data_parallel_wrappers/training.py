"""Training with loss scaling, mixed precision, delayed reductions and steps inside backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from msgspec import structs

from pipeconform.bounds.numerics import compare
from pipeconform.case.wrapper_case import Pass, Step, WrapperCase
from pipeconform.judge.evidence import Finding
from pipeconform.spec.catalogue import MUST
from pipeconform.wrapper import WrapOptions, WrapperClaims
from pipeconform.wrapper import WrapperFeature as F
from pipeconform.wrappers.judge import WrapperEvidence, is_right
from pipeconform.wrappers.judgement import requirement, under

from ..promises import ORDINARY, documented, in_source


def _scaled(claims: WrapperClaims) -> Iterator[WrapperCase]:
    plain = WrapperCase(module="probed", special="scaled")
    for rank in (0, 1):
        yield structs.replace(plain, steps=(Step(), Step(overflow=rank), Step()))
    yield from under(structs.replace(plain, steps=(Step(overflow=1), Step(overflow=0), Step())), claims)
    yield structs.replace(plain, ranks=3, steps=(Step(), Step(overflow=2), Step()))
    if F.NO_SYNC in claims.features:
        twice = (Pass(sync="no"), Pass())
        yield structs.replace(plain, steps=(Step(passes=twice), Step(passes=twice, overflow=1), Step()))


@requirement(
    "DPW-27",
    title="One infinite gradient",
    level=MUST,
    cases=_scaled,
    needs=(F.GRADIENT_SCALER,),
    promise=(
        documented("torch.amp.GradScaler documentation", "amp.html#gradient-scaling"),
        in_source("ShardedGradScaler", "distributed/fsdp/sharded_grad_scaler.py"),
    ),
)
def one_infinite_gradient(evidence: WrapperEvidence) -> Iterator[Finding]:
    """With a loss scaler, a step in which one element of one rank's gradient is infinite or not a number is
    skipped on every rank, and the scale stays the same on all; the next step is taken as usual.

    A rank that skips alone is out of step forever, and its loss looks as good as the others'.
    """
    from pipeconform.wrappers.special import FIRST_SCALE

    found = list(is_right(evidence))
    yield from found
    if found:
        return
    due = FIRST_SCALE
    for index, step in enumerate(evidence.case.steps):
        due = due / 2 if step.overflow is not None else due
        for shown in evidence.shown:
            scale = shown.steps[index].scale
            evidence.compared()
            if scale != due:
                text = f"rank {shown.rank}, after step {index}: losses are scaled by {scale}; expected: {due}"
                yield Finding(kind="scale differs", message=text, step=index, rank=shown.rank)
                return


def _mixed(claims: WrapperClaims) -> Iterator[WrapperCase]:
    plain = WrapperCase(module="mixed")
    for options in (
        WrapOptions(param_dtype="bfloat16", reduce_dtype="float32"),
        WrapOptions(param_dtype="float32", reduce_dtype="bfloat16"),
        WrapOptions(param_dtype="bfloat16", reduce_dtype="bfloat16"),
        WrapOptions(reduce_dtype="bfloat16"),
        WrapOptions(reduce_dtype="float32"),
    ):
        case = structs.replace(plain, options=replace(options, broadcast_buffers=False))
        yield case
        if options.param_dtype is not None:
            yield from list(under(case, claims))[1:]
    if F.BUFFER_DTYPE in claims.features:
        for buffer_dtype in ("float32", "bfloat16"):
            options = WrapOptions(
                param_dtype="bfloat16",
                reduce_dtype="float32",
                buffer_dtype=buffer_dtype,
                broadcast_buffers=False,
            )
            yield structs.replace(plain, options=options)


@requirement(
    "DPW-28",
    title="Mixed precision",
    level=MUST,
    cases=_mixed,
    needs=(F.MIXED_PRECISION,),
    promise=(
        documented(
            "torch.distributed.fsdp, MixedPrecision documentation",
            "fsdp.html#torch.distributed.fsdp.MixedPrecision",
        ),
        documented(
            "MixedPrecisionPolicy documentation",
            "distributed.fsdp.fully_shard.html#torch.distributed.fsdp.MixedPrecisionPolicy",
        ),
    ),
)
def mixed_precision(evidence: WrapperEvidence) -> Iterator[Finding]:
    """The forward computes with parameters and inputs in the dtype asked for; gradients are averaged in the
    dtype asked for them (rounded to it, and to none that is coarser), and buffers are in theirs where that is
    claimed; parameters and gradients keep their own.

    A reduction in another dtype shows in no shape and in no error, only in digits that are not missed at
    first.
    """
    found = list(is_right(evidence))
    yield from found
    if found:
        return
    expected = evidence.expected()
    for shown in evidence.shown:
        for index, step in enumerate(shown.steps):
            for seen, due in zip(step.passes, expected.steps[index], strict=True):
                if seen.gradients is None:
                    continue
                evidence.compared()
                mismatch = compare(due.gradients[shown.rank]["probe"], seen.gradients["probe"])
                if mismatch is not None:
                    text = (
                        f"rank {shown.rank}, step {index}: the gradient of probe is not rounded to "
                        f"{evidence.case.options.reduce_dtype}\n{mismatch.describe()}"
                    )
                    kind = "reduced in another dtype"
                    yield Finding(kind=kind, message=text, step=index, rank=shown.rank, mismatch=mismatch)
                    return


def _delayed(claims: WrapperClaims) -> Iterator[WrapperCase]:
    last = WrapOptions(delayed=("leave.weight", "leave.bias"), delayed_until="enter.weight")
    many = WrapOptions(delayed=("leave.weight", "leave.bias", "heavy.many"), delayed_until="enter.weight")
    yield WrapperCase(module="single", options=last, steps=(Step(),) * 3)
    yield WrapperCase(options=last, steps=(Step(),) * 3)
    for late in (0, 1):
        yield WrapperCase(module="single", options=many, steps=(Step(late=late),) * 3)
    yield WrapperCase(module="single", options=last, steps=(Step(), Step(zero="zeros"), Step(zero="keep")))
    yield WrapperCase(module="single", options=last, ranks=3)


@requirement(
    "DPW-29",
    title="Delayed reductions",
    level=MUST,
    cases=_delayed,
    needs=(F.DELAYED,),
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel documentation, delay_all_reduce_named_params",
        "generated/torch.nn.parallel.DistributedDataParallel.html",
    ),
)
def delayed_reductions(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Parameters whose reduction is delayed until the gradient of another is there have their means at the
    end of the backward pass, like all others, whatever their dtype and also where a rank is late.

    A reduction that is begun and not waited for is now and then read too early.
    """
    yield from is_right(evidence)


def _in_backward(claims: WrapperClaims) -> Iterator[WrapperCase]:
    plain = WrapperCase(special="in_backward", steps=(Step(),) * 3)
    yield from under(plain, claims, F.BUCKETS, F.BUCKET_VIEW)
    yield structs.replace(plain, module="shared")
    yield structs.replace(plain, module="frozen", ranks=3)


@requirement(
    "DPW-30",
    title="Steps inside backward",
    level=MUST,
    cases=_in_backward,
    needs=(F.STEP_IN_BACKWARD,),
    promise=(
        in_source(
            "torch.distributed.optim._apply_optimizer_in_backward",
            "distributed/optim/apply_optimizer_in_backward.py",
        ),
        documented(
            "torch.Tensor.register_post_accumulate_grad_hook documentation",
            "generated/torch.Tensor.register_post_accumulate_grad_hook.html",
        ),
    ),
)
def steps_inside_backward(evidence: WrapperEvidence) -> Iterator[Finding]:
    """An optimizer that steps inside the backward pass takes one step for each parameter, with the mean
    gradient.

    A step taken before the reduction uses the rank's own gradient.
    """
    yield from is_right(evidence)


def _penalised(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield from under(WrapperCase(special="penalty", steps=(Step(),) * 3), claims)
    yield WrapperCase(special="penalty", form="dict", module="shared")


@requirement(
    "DPW-32",
    title="Gradients of gradients",
    level=MUST,
    cases=_penalised,
    needs=(F.DOUBLE_BACKWARD,),
    promise=(
        ORDINARY,
        documented(
            "torch.nn.parallel.DistributedDataParallel documentation, warning: works with torch.autograd.grad only if "
            "gradients are accumulated in the .grad of parameters, as they are here",
            "generated/torch.nn.parallel.DistributedDataParallel.html",
        ),
    ),
)
def gradients_of_gradients(evidence: WrapperEvidence) -> Iterator[Finding]:
    """A loss that contains gradients with respect to the inputs has the gradients that it has without the
    wrapper, averaged once.

    The first of the two backward passes reaches no parameter, and is easily taken for the whole.
    """
    yield from is_right(evidence)


def _modified(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield from under(WrapperCase(special="modified", steps=(Step(),) * 3), claims)
    if F.STRUCTURED in claims.features:
        for form in ("tuple", "dict", "nested"):
            yield from under(
                WrapperCase(special="modified", form=form, steps=(Step(),) * 3),
                claims,
                F.FIND_UNUSED,
                F.STATIC_GRAPH,
            )


@requirement(
    "DPW-33",
    title="Outputs modified in place",
    level=MUST,
    cases=_modified,
    needs=(F.MODIFIED_OUTPUTS,),
    promise=in_source(
        "torch.nn.parallel.DistributedDataParallel, _set_ddp_sink_clone: outputs may be modified in place",
        "nn/parallel/distributed.py",
    ),
)
def outputs_modified_in_place(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Outputs may be modified in place before the loss, as without the wrapper.

    Outputs that the wrapper has passed through a function of its own are views, or the wrapper still needs
    them.
    """
    yield from is_right(evidence)
