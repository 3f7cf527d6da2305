"""Mean gradients, and which parameters have them."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.wrapper_case import Step, WrapperCase
from pipeconform.judge.evidence import Finding
from pipeconform.spec.catalogue import MUST
from pipeconform.wrapper import WrapOptions, WrapperClaims
from pipeconform.wrapper import WrapperFeature as F
from pipeconform.wrappers.judge import WrapperEvidence, differing, failures, is_right, refused
from pipeconform.wrappers.judgement import requirement, under

from ..promises import ORDINARY, documented, in_source


def _mean(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(steps=(Step(),))
    yield from under(WrapperCase(steps=(Step(),) * 3), claims)
    yield WrapperCase(ranks=3)
    yield WrapperCase(ranks=1)


@requirement(
    "DPW-1",
    title="The mean gradient",
    level=MUST,
    cases=_mean,
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel documentation",
        "generated/torch.nn.parallel.DistributedDataParallel.html",
    ),
)
def the_mean_gradient(evidence: WrapperEvidence) -> Iterator[Finding]:
    """After a backward pass, every parameter's gradient is, on every rank, the mean over the replicas of the
    gradients that each of them has from its own data; replicas that take equal optimizer steps stay equal,
    bit for bit.

    With equal data on every replica, a sum, a mean over the wrong number and no reduction at all look alike.
    """
    yield from is_right(evidence)


def _begin(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(own_values=True)
    yield WrapperCase(own_values=True, ranks=3, module="shared")
    if F.BROADCASTS_BUFFERS in claims.features:
        yield WrapperCase(own_values=True, module="normed")


@requirement(
    "DPW-2",
    title="Replicas begin equal",
    level=MUST,
    cases=_begin,
    needs=(F.BROADCASTS,),
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel documentation",
        "generated/torch.nn.parallel.DistributedDataParallel.html",
    ),
)
def replicas_begin_equal(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Replicas that were built with different parameters or buffers have those of the first rank once they
    are wrapped.

    The mean of gradients of different models trains none of them.
    """
    raised = list(failures(evidence))
    yield from raised
    if raised:
        return
    ignored = evidence.case.options.ignored
    first = {name: value for name, value in evidence.expected().initial[0].items() if name not in ignored}
    for shown in evidence.shown:
        for name, mismatch in differing(evidence, first, shown.initial):
            text = f"rank {shown.rank}: {name} is not the first rank's after wrapping\n{mismatch.describe()}"
            yield Finding(kind="replicas begin apart", message=text, rank=shown.rank, mismatch=mismatch)
            return
    yield from is_right(evidence)


def _shapes(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(own_shape=True)
    yield WrapperCase(own_shape=True, ranks=3)


@requirement(
    "DPW-3",
    title="Other shapes are refused",
    level=MUST,
    cases=_shapes,
    needs=(F.VERIFIES,),
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel documentation, init_sync: the shapes of parameters are verified",
        "generated/torch.nn.parallel.DistributedDataParallel.html",
    ),
)
def other_shapes_are_refused(evidence: WrapperEvidence) -> Iterator[Finding]:
    """A parameter that has another shape on one rank raises an error on every rank when the module is
    wrapped; its message names the parameter, or its module, and a rank.

    Found later, it is a hang, or memory read as another parameter's.
    """
    yield from refused(evidence, where="wrap", words=(r"\benter\.weight\b|\benter\b", r"\brank"))


def _dtypes(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield from under(WrapperCase(module="dtypes"), claims)


@requirement(
    "DPW-4",
    title="Several dtypes",
    level=MUST,
    cases=_dtypes,
    needs=(F.SEVERAL_DTYPES,),
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel documentation, note on different types of parameters",
        "generated/torch.nn.parallel.DistributedDataParallel.html",
    ),
)
def several_dtypes(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Parameters of several floating dtypes in one module get their means, each in its own dtype.

    Buckets hold one dtype; a cast through another loses digits without a trace.
    """
    yield from is_right(evidence)


def _shared_and_frozen(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield from under(WrapperCase(module="shared"), claims)
    yield from under(WrapperCase(module="frozen"), claims)


@requirement(
    "DPW-5", title="Shared and frozen parameters", level=MUST, cases=_shared_and_frozen, promise=ORDINARY
)
def shared_and_frozen_parameters(evidence: WrapperEvidence) -> Iterator[Finding]:
    """A parameter used in two places gets the sum of its gradients, averaged once; a parameter that needs no
    gradient gets none.

    A parameter with two names is easily reduced twice.
    """
    yield from is_right(evidence)


def _ignored(claims: WrapperClaims) -> Iterator[WrapperCase]:
    options = WrapOptions(ignored=("own", "own_seen"))
    yield from under(WrapperCase(module="ignored", options=options), claims)


@requirement(
    "DPW-6",
    title="Ignored parameters and buffers are left alone",
    level=MUST,
    cases=_ignored,
    needs=(F.IGNORES,),
    promise=(
        in_source(
            "torch.nn.parallel.DistributedDataParallel, parameters and buffers to ignore",
            "nn/parallel/distributed.py",
        ),
        documented("fully_shard, ignored_params", "distributed.fsdp.fully_shard.html"),
    ),
)
def what_is_ignored_stays_the_user_s(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Parameters and buffers that the user names to be ignored are neither broadcast nor reduced.

    The user keeps them in step by other means, or means them to differ.
    """
    yield from is_right(evidence)


def _zeroed(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(steps=(Step(), Step(zero="zeros"), Step(zero="keep"), Step()))


@requirement(
    "DPW-14",
    title="Gradients cleared in any way",
    level=MUST,
    cases=_zeroed,
    promise=(
        ORDINARY,
        documented(
            "torch.optim.Optimizer.zero_grad documentation, set_to_none",
            "generated/torch.optim.Optimizer.zero_grad.html",
        ),
    ),
)
def gradients_cleared_in_any_way(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Gradients that are set to None, to zero, or kept from an earlier step give the same sums as without the
    wrapper.

    A kept gradient is a mean already; reduced again with the others, it must stay one.
    """
    yield from is_right(evidence)


def _channels_last(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield from under(WrapperCase(module="conv", steps=(Step(),) * 3), claims)


@requirement(
    "DPW-25",
    title="Channels last",
    level=MUST,
    cases=_channels_last,
    needs=(F.CHANNELS_LAST,),
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel documentation, warning on strides: channels_last is allowed",
        "generated/torch.nn.parallel.DistributedDataParallel.html",
    ),
)
def channels_last(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Parameters that are dense but not contiguous get their means.

    A bucket copied in memory order puts numbers in the wrong places.
    """
    yield from is_right(evidence)


def _sparse(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(module="sparse")
    yield WrapperCase(module="sparse", ranks=3)


@requirement(
    "DPW-26",
    title="Sparse gradients",
    level=MUST,
    cases=_sparse,
    needs=(F.SPARSE,),
    promise=documented("torch.nn.Embedding documentation, sparse", "generated/torch.nn.Embedding.html"),
)
def sparse_gradients(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Sparse gradients of embeddings are averaged over replicas that looked up different rows.

    Rows that only one replica has are easily lost, or not divided.
    """
    yield from is_right(evidence)
