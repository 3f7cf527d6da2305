"""Communication hooks, built in and written by users."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.wrapper_case import Pass, Step, WrapperCase
from pipeconform.judge.evidence import Finding
from pipeconform.spec.catalogue import MUST
from pipeconform.wrapper import WrapperClaims
from pipeconform.wrapper import WrapperFeature as F
from pipeconform.wrappers.judge import MISUSE, WrapperEvidence, hook_is_used, is_right, refused
from pipeconform.wrappers.judgement import requirement, under

from ..promises import documented


def _hooks(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for hook in claims.compressions:
        yield from under(WrapperCase(hook=hook), claims, F.BUCKETS, F.BUCKET_VIEW)


@requirement(
    "DPW-16",
    title="Built-in hooks",
    level=MUST,
    cases=_hooks,
    needs=(F.HOOKS,),
    promise=documented("torch.distributed.algorithms.ddp_comm_hooks documentation", "ddp_comm_hooks.html"),
)
def built_in_hooks(evidence: WrapperEvidence) -> Iterator[Finding]:
    """The built-in communication hooks give the mean: a plain all-reduce as without a hook, a compressed one
    within the precision of its dtype.

    A hook that is registered takes over the division, too.
    """
    yield from is_right(evidence)


def _user_hook(claims: WrapperClaims) -> Iterator[WrapperCase]:
    steps = (Step(), Step(passes=(Pass(sync="no"), Pass())), Step())
    yield from under(WrapperCase(hook="user", steps=steps), claims, F.BUCKETS, F.BUCKET_VIEW)


@requirement(
    "DPW-17",
    title="A user's hook",
    level=MUST,
    cases=_user_hook,
    needs=(F.HOOKS,),
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel.register_comm_hook documentation",
        "generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.register_comm_hook",
    ),
)
def a_user_s_hook(evidence: WrapperEvidence) -> Iterator[Finding]:
    """A user's hook is called with its state and is given every trained parameter's gradient exactly once in
    each pass that synchronises; the result of its future is the gradient.

    If a hook's result is ignored, or the hook misses the rebuilt buckets, nothing shows it.
    """
    yield from hook_is_used(evidence)


def _wrong_hooks(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for hook in ("not_callable", "one_argument", "annotated", "second"):
        yield WrapperCase(hook=hook)


@requirement(
    "DPW-18",
    title="Invalid hooks are refused",
    level=MUST,
    cases=_wrong_hooks,
    needs=(F.HOOKS,),
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel.register_comm_hook documentation",
        "generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.register_comm_hook",
    ),
)
def what_is_no_hook_is_refused(evidence: WrapperEvidence) -> Iterator[Finding]:
    """A hook that cannot be called, takes another number of arguments or has other annotations, and a second
    registration, raise a TypeError, ValueError or RuntimeError on every rank, at the latest when the hook is
    first used; its message mentions the hook or its arguments.

    Called in the middle of a backward, such a hook gives an error of another place, or none.
    """
    yield from refused(evidence, where="hook|step 0", words=("hook|argument",), types=MISUSE)
