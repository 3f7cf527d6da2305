"""Process groups, buffer hooks, state dicts, pickling, devices and materialisation."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from pipeconform.case.wrapper_case import Regroup, Step, WrapperCase
from pipeconform.judge.evidence import Finding
from pipeconform.spec.catalogue import MUST, SHOULD
from pipeconform.wrapper import WrapOptions, WrapperClaims
from pipeconform.wrapper import WrapperFeature as F
from pipeconform.wrappers.judge import (
    MISUSE,
    WrapperEvidence,
    differing,
    failures,
    hook_is_used,
    is_right,
    refused,
)
from pipeconform.wrappers.judge_state import state_travels
from pipeconform.wrappers.judgement import requirement, under
from pipeconform.wrappers.sharded_grid import nested_cases, states_between_worlds

from ..promises import documented, in_source


def _regrouped(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for ranks in ((0, 1), (1, 2), (0, 2)):
        case = WrapperCase(ranks=3, steps=(Step(),) * 4, regroup=Regroup(step=2, ranks=ranks))
        yield from under(case, claims)
    yield WrapperCase(ranks=2, steps=(Step(),) * 3, regroup=Regroup(step=1, ranks=(0, 1)))
    yield WrapperCase(ranks=2, steps=(Step(),) * 3, regroup=Regroup(step=1, ranks=(1,)))
    if F.HOOKS in claims.features:
        hooked = WrapperCase(ranks=3, steps=(Step(),) * 4, regroup=Regroup(step=2, ranks=(0, 2)), hook="user")
        yield from under(hooked, claims, F.BUCKETS, F.BUCKET_VIEW)


@requirement(
    "DPW-31",
    title="Another process group",
    level=MUST,
    cases=_regrouped,
    needs=(F.OTHER_GROUP,),
    promise=in_source(
        "torch.nn.parallel.DistributedDataParallel._update_process_group", "nn/parallel/distributed.py"
    ),
)
def another_process_group(evidence: WrapperEvidence) -> Iterator[Finding]:
    """After another process group has taken over, means are over its ranks; the ranks that it leaves out are
    no longer waited for.

    The number by which sums are divided is easily the old one.
    """
    yield from (hook_is_used if evidence.case.hook else is_right)(evidence)


def _buffer_hooks(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for special in ("buffers_before", "buffers_after"):
        for module in ("assigned", "normed"):
            case = WrapperCase(special=special, module=module, steps=(Step(),) * 3)
            yield from under(case, claims, F.FIND_UNUSED, F.STATIC_GRAPH)


@requirement(
    "DPW-34",
    title="Hooks for buffers",
    level=MUST,
    cases=_buffer_hooks,
    needs=(F.BUFFER_HOOKS,),
    promise=in_source(
        "torch.nn.parallel.DistributedDataParallel._register_buffer_comm_hook", "nn/parallel/distributed.py"
    ),
)
def hooks_for_buffers(evidence: WrapperEvidence) -> Iterator[Finding]:
    """A user's hook synchronises the buffers instead of the wrapper, before or after every forward, as asked
    for; it is given the buffers that the module has at that time, by name.

    A hook that is called at the other time, or with the last step's buffers, changes statistics only.
    """
    yield from is_right(evidence)


def _between_worlds(claims: WrapperClaims) -> Iterator[WrapperCase]:
    """Cases in which one number of ranks trains and saves, and another loads and trains on."""
    for ranks, others in ((2, 1), (2, 3), (4, 2), (1, 4)):
        yield WrapperCase(ranks=ranks, loaded_by=others)
    own = WrapOptions(broadcast_buffers=False)
    yield WrapperCase(module="normed", ranks=3, loaded_by=2, options=own)
    yield WrapperCase(module="shared", ranks=2, loaded_by=3)
    if F.SHARDS in claims.features:
        yield from states_between_worlds(claims)


def _states(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for special in ("saved", "loaded"):
        for ranks in (2, 4, 1):
            yield WrapperCase(special=special, ranks=ranks)
        yield WrapperCase(special=special, module="normed", options=WrapOptions(broadcast_buffers=False))
        yield WrapperCase(special=special, module="shared", ranks=3)
    yield from _between_worlds(claims)


@requirement(
    "DPW-35",
    title="State for any number of ranks",
    level=MUST,
    cases=_states,
    needs=(F.FULL_STATE,),
    promise=documented(
        "torch.distributed.checkpoint.state_dict documentation",
        "distributed.checkpoint.html#torch.distributed.checkpoint.state_dict.get_model_state_dict",
    ),
)
def state_for_any_number_of_ranks(evidence: WrapperEvidence) -> Iterator[Finding]:
    """The whole state dict has the names and values of the module's own, with any number of ranks, and a
    state dict of the module's own can be loaded with any. What one number of ranks saves after training,
    another number loads, bit for bit, and continues to train with.

    A checkpoint that fits one number of ranks only is found out when the cluster has changed.
    """
    yield from state_travels(evidence)


def _pickled(claims: WrapperClaims) -> Iterator[WrapperCase]:
    case = WrapperCase(special="pickled", steps=(Step(),) * 3)
    yield from under(case, claims)
    yield structs.replace(case, module="normed")
    yield structs.replace(case, options=WrapOptions(new_group=True))


@requirement(
    "DPW-36",
    title="Pickling",
    level=MUST,
    cases=_pickled,
    needs=(F.PICKLED,),
    promise=in_source(
        "torch.nn.parallel.DistributedDataParallel, __getstate__", "nn/parallel/distributed.py"
    ),
)
def pickling(evidence: WrapperEvidence) -> Iterator[Finding]:
    """A wrapper that is restored from a pickle trains on with the others. In a process group other than the
    default one, pickling raises an error that mentions the default group.

    A process group cannot be pickled; a copy that has none reduces nothing.
    """
    if not evidence.case.options.new_group:
        yield from is_right(evidence)
        return
    yield from refused(evidence, where="pickled", words=("default", "group"))


def _logged(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(special="logged")
    yield WrapperCase(special="logged", ranks=3)
    yield WrapperCase(special="logged_wrongly")


@requirement(
    "DPW-37",
    title="What it reports about itself",
    level=SHOULD,
    cases=_logged,
    needs=(F.LOGGED,),
    promise=in_source(
        "torch.nn.parallel.DistributedDataParallel, _get_ddp_logging_data and _set_ddp_runtime_logging_sample_rate",
        "nn/parallel/distributed.py",
    ),
)
def what_it_tells_about_itself(evidence: WrapperEvidence) -> Iterator[Finding]:
    """The wrapper reports the number of ranks, this rank and the name of the module's class; a logging rate
    below one raises an error that mentions the rate.

    What people look at when something is wrong ought to be right itself.
    """
    if evidence.case.special == "logged_wrongly":
        yield from refused(evidence, where="logged_wrongly", words=("rate",), types=MISUSE)
        return
    found = list(is_right(evidence))
    yield from found
    for shown in evidence.shown if not found else ():
        due = {"world_size": str(evidence.case.ranks), "rank": str(shown.rank), "module_name": "_Module"}
        for name, value in due.items():
            told = shown.logged.get(name)
            evidence.compared()
            if told != value:
                text = f"rank {shown.rank}: {name} is reported as {told!r}; expected: {value!r}"
                yield Finding(kind="tells something else", message=text, rank=shown.rank)
                return


_ANOTHER = 7
"""The index of a device on which the module is not; a rank that has it is given another index."""


def _devices(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(module="two_devices")
    yield WrapperCase(options=WrapOptions(device_ids=(_ANOTHER,)))
    yield WrapperCase(options=WrapOptions(device_ids=(0, 1)))
    yield WrapperCase(options=WrapOptions(output_device=1))


@requirement(
    "DPW-38",
    title="Devices that do not fit",
    level=MUST,
    cases=_devices,
    needs=(F.DEVICES,),
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel documentation, device_ids and output_device",
        "generated/torch.nn.parallel.DistributedDataParallel.html",
    ),
)
def devices_that_do_not_fit(evidence: WrapperEvidence) -> Iterator[Finding]:
    """A module on several kinds of devices, and arguments that name devices on which the module is not, raise
    an error that mentions devices, on every rank: when the module is wrapped, or in the first forward.

    Found later, it is an error inside a collective. The first forward is soon enough for the index of another device of
    the right kind: inputs are moved there, and nothing was computed before.
    """
    named = evidence.case.options.device_ids == (_ANOTHER,)
    yield from refused(evidence, where="wrap|step 0" if named else "wrap", words=("device",), types=MISUSE)


def _deferred(claims: WrapperClaims) -> Iterator[WrapperCase]:
    after = WrapperCase(deferred="after")
    yield from under(structs.replace(after, steps=(Step(),) * 3), claims)
    yield structs.replace(after, ranks=3)
    normed = structs.replace(after, module="normed", options=WrapOptions(broadcast_buffers=False))
    yield normed
    if F.BROADCASTS in claims.features:
        yield structs.replace(after, own_values=True)
    if F.FULL_STATE in claims.features:
        yield structs.replace(after, special="loaded")
        yield structs.replace(normed, special="loaded")
    if F.SHARDS in claims.features:
        for case in nested_cases(claims):
            yield structs.replace(case, deferred="after")
            if F.FULL_STATE in claims.features:
                yield structs.replace(case, deferred="after", special="loaded")
    yield WrapperCase(
        module="ignored", deferred="never"
    )  # the module itself has a parameter, and no way to fill it


@requirement(
    "DPW-43",
    title="Materialised after wrapping",
    level=MUST,
    cases=_deferred,
    needs=(F.DEFERRED,),
    promise=(
        documented(
            "torch.distributed.fsdp.fully_shard documentation, meta device",
            "distributed.fsdp.fully_shard.html",
        ),
        documented(
            "FullyShardedDataParallel documentation, param_init_fn",
            "fsdp.html#torch.distributed.fsdp.FullyShardedDataParallel",
        ),
    ),
)
def materialised_after_wrapping(evidence: WrapperEvidence) -> Iterator[Finding]:
    """A module that is on the meta device when it is wrapped, and is materialised after that or by it, has on
    every rank what its parts' own initialisation gives (the first rank's, where replicas begin equal), or
    what is loaded then, and trains like one that had its values before. One that is never materialised raises
    an error on every rank, which mentions the meta device or what is missing to initialise it.

    Hooks, shards and buckets made for the earlier parameters are of no use for the new ones.
    """
    if evidence.case.deferred == "never":
        yield from refused(evidence, where="wrap|step 0", words=(r"\bmeta\b|materiali|reset_parameters",))
        return
    raised = list(failures(evidence))
    yield from raised
    if raised:
        return
    right = evidence.expected().initial[0]
    when = "after loading" if evidence.case.special == "loaded" else "once it is materialised"
    for shown in evidence.shown:
        for name, mismatch in differing(evidence, right, shown.initial):
            text = f"rank {shown.rank}: {name} {when}\n{mismatch.describe()}"
            yield Finding(kind="materialised otherwise", message=text, rank=shown.rank, mismatch=mismatch)
            return
    yield from is_right(evidence)
