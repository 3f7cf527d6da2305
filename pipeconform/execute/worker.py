"""What a rank process does with a case: build, run the program, record.

Runs in rank processes only; the controller names these functions and sends them MessagePack.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from msgspec import structs
from torch import nn

from pipeconform import adapter as contract
from pipeconform.adapter import Plan, Ranks
from pipeconform.case.build.mistakes import MistakeMaker
from pipeconform.case.build.whole import cuts_are_known
from pipeconform.case.case import Case, Eval, Train
from pipeconform.case.planned import planned_for
from pipeconform.case.seeds import seed_of, seed_process
from pipeconform.errors import ContractError, Unsupported
from pipeconform.execute import implementation, leaks, mistaken
from pipeconform.execute.answers import CheckedPipeline
from pipeconform.execute.batch_sources import BatchSources
from pipeconform.execute.built import build_changes
from pipeconform.execute.coverage import measured, packages_of
from pipeconform.execute.described import told_alike
from pipeconform.execute.disturber import Disturber
from pipeconform.execute.groups import Groups, ends_after_errors, groups_of, lasting_groups, release_earlier
from pipeconform.execute.initial import Initials
from pipeconform.execute.job import Job
from pipeconform.execute.kept_stages import KeptStages
from pipeconform.execute.neighbours import neighbours_of
from pipeconform.execute.planning import owners_of, plan_of
from pipeconform.execute.randomness import random_state
from pipeconform.execute.replicas import AveragingHook
from pipeconform.execute.steps import run_step
from pipeconform.observe.attached import listen
from pipeconform.observe.gradients import Gradients
from pipeconform.observe.memory import Memory
from pipeconform.observe.observation import (
    Known,
    LivedOn,
    Observation,
    StepShown,
)
from pipeconform.observe.recorder import ForwardRecorder
from pipeconform.observe.reductions import ReductionRecorder, reduction_recorder
from pipeconform.observe.timeline import Timeline
from pipeconform.observe.traffic.recorder import TrafficRecorder
from pipeconform.ranks import debugger, examiner
from pipeconform.ranks.rank import RankContext

__all__ = ["execute"]


_JOBS = msgspec.msgpack.Decoder(Job)  # made once, in the fork server: making it takes longer than many cases


@functools.lru_cache(maxsize=4)
def _adapter(reference: str, described: bytes, folder: str) -> tuple[contract.Adapter, contract.Description]:
    adapter = implementation.load(reference)
    here = implementation.describe(reference)
    assert isinstance(here, contract.Description), "only the cases of pipelines are sent to this task"
    description = told_alike(described, here)
    if description.capabilities.fresh_process_per_build:
        # these processes are killed after one case: what they compiled or locked must not outlive them
        os.environ["TORCH_EXTENSIONS_DIR"] = os.environ["TMPDIR"] = tempfile.tempdir = folder
    adapter.setup_process()
    return adapter, description


def execute(context: RankContext, payload: bytes) -> bytes:
    """Run one `Job` on this rank and return its `Observation`, both as MessagePack.

    Raises:
        ContractError: the adapter returned something its contract does not allow.
        Exception: whatever the implementation raised.
    """
    job = _JOBS.decode(payload)
    adapter, description = _adapter(job.implementation, job.described, context.folder)
    single = description.capabilities.world == "single_process"
    release_earlier()
    mistaken.begin()
    lasting, lingers = lasting_groups(), "loneliness" in job.observe
    kept = KeptStages() if "recovery" in job.observe else None

    def once(case: Case) -> Observation:
        if kept is not None:
            kept.begin()
        owners = owners_of(case, description)
        with (
            groups_of(case, context, distributed=not single, lingers=lingers, owners=owners) as groups,
            _letting_go(waits),
        ):
            with (
                _judged_recording(job, groups.pipeline, waits) as traffic,
                reduction_recorder(job.observe, groups.replicas) as reductions,
            ):
                observation = _run(
                    structs.replace(job, case=case),
                    adapter,
                    description,
                    context,
                    groups,
                    traffic,
                    reductions,
                    kept,
                )
            if traffic is not None and _may_go_wrong(case):
                observation = structs.replace(observation, lasting=not lasting.isdisjoint(traffic.used))
            if traffic is not None and "traffic" in job.observe:
                observation = structs.replace(observation, traffic=traffic.traffic())
            if observation.failed is not None:
                gc.collect()  # what the engine left in reference cycles would keep its connections open
                raise mistaken.CaseEnded(observation)
            return observation

    with _waits_recorded(job) as waits, measured(packages_of(adapter, description), folder=job.coverage):
        if not job.case.is_mistaken:
            return msgspec.msgpack.encode(once(job.case))
        observation = mistaken.live_through(job.case, once, recovers="recovery" in job.observe)
        return msgspec.msgpack.encode(observation)


def _may_go_wrong(case: Case) -> bool:
    """Whether stages lie on wrong ranks, or something is done wrong on purpose."""
    return bool(case.world.placement) or case.is_mistaken


def _waits_recorded(job: Job) -> AbstractContextManager[TrafficRecorder | None]:
    """Record all communication from beginning to end, the harness's included, if a hang is to be proved.

    Where a case may go wrong a hang is likely: the record proves it, long before idleness does.
    """
    wanted = _may_go_wrong(job.case) or "waits" in job.observe
    if wanted and {"traffic", "reductions"}.isdisjoint(job.observe):  # one listener at a time
        return TrafficRecorder(guard=False).recording()
    return nullcontext()


@contextmanager
def _letting_go(recorder: TrafficRecorder | None) -> Iterator[None]:
    """If an error ends a case, let its recorder keep no connection open: others may wait for its end."""
    try:
        yield
    except BaseException:
        if recorder is not None:
            recorder.let_go()
        raise


def _judged_recording(
    job: Job, group: dist.ProcessGroup | None, waits: TrafficRecorder | None
) -> AbstractContextManager[TrafficRecorder | None]:
    """Record what the implementation communicates, to be judged; otherwise `waits` records, if anything does."""
    if "traffic" not in job.observe or "reductions" in job.observe:
        return nullcontext(waits)
    return TrafficRecorder(given=group).recording()


def _run(
    job: Job,
    adapter: contract.Adapter,
    description: contract.Description,
    context: RankContext,
    groups: Groups,
    traffic: TrafficRecorder | None,
    reductions: ReductionRecorder | None,
    kept: KeptStages | None,
) -> Observation:
    world = job.case.world
    number, replica = world.pipeline_of(context.rank) or 0, world.replica_of(context.rank) or 0
    members, watches = world.pipelines[number], "timeline" in job.observe
    single = description.capabilities.world == "single_process"
    position = 0 if single else (members.index(context.rank) if context.rank in members else None)
    case, description = planned_for(job.case, position), _asked_of(description, job.case)
    ranks = Ranks(
        device=torch.device(context.device),
        rank=context.rank,
        world_size=context.world_size,
        pipeline_ranks=members,
        pipeline_rank=position,
        pipeline_group=groups.pipeline,
        replica=replica,
        num_replicas=world.num_replicas,
        replica_groups=groups.replicas,
        tensor_rank=number // world.num_replicas,
        num_tensor_ranks=world.num_tensor_ranks,
        mesh=groups.mesh,
    )
    random.seed(seed_of(case.seed, "python", context.rank))
    np.random.seed(seed_of(case.seed, "numpy", context.rank))
    seed_process(seed_of(case.seed, "rank", context.rank), device=context.device)
    memory = Memory() if "memory" in job.observe else None
    recorder = ForwardRecorder(
        Timeline(memory) if watches else None,
        traffic,
        gradients=Gradients() if "gradients" in job.observe else None,
        device=ranks.device,
    )
    disturber = Disturber(case.world.perturbations, rank=position, replica=replica)
    mistakes = MistakeMaker(case)
    hook = AveragingHook(mistakes.reduction)
    if reductions is not None and recorder.timeline is not None:
        timeline = recorder.timeline
        reductions.count = lambda: timeline.count
    initials = Initials(case)
    plan = plan_of(case, description, ranks, recorder, disturber, mistakes, hook, initials, kept)
    claim = description.capabilities.schedule(case.schedule)
    if traffic is not None and claim is not None:
        traffic.neighbours = neighbours_of(case, plan, claim)
    before = random_state(ranks.device)
    nothing = Observation(rank=context.rank, pipeline_rank=position)
    try:
        pipeline = CheckedPipeline(adapter.build(plan), parameters=initials.given_names)
    except Unsupported as reason:
        if job.case.world.misplan is not None:
            return structs.replace(nothing, failed=mistaken.failed_by(reason, step=None))
        return structs.replace(nothing, unsupported=str(reason))
    except Exception as error:
        debugger.post_mortem(error)
        if not job.case.is_mistaken or isinstance(error, ContractError):
            raise
        return structs.replace(nothing, failed=mistaken.failed_by(error, step=None))
    lived_on: LivedOn | None = None
    steps: list[StepShown] = []
    raised = False
    try:
        changes = tuple(build_changes(case, pipeline, initials, before, device=ranks.device))
        declares = contract.Feature.DECLARED_TABLE in description.capabilities.features
        table = pipeline.table() if watches and declares else None
        keys, known = _said(case, pipeline, description.capabilities)
        _listen(case, pipeline, recorder)
        recorder.take()
        recorder.begun()
        recorder.events()
        recorder.flow()
        run = functools.partial(
            run_step,
            initials=initials,
            sources=BatchSources(),
            returns_outputs=not _goes_without_outputs(job, description.capabilities),
        )
        program = _program(
            case, plan, pipeline, description.capabilities, recorder, disturber, mistakes, traffic, run
        )
        if reductions is not None:
            reductions.take()
        for shown in program:
            reduced = None if reductions is None else reductions.take()
            steps.append(structs.replace(shown, reductions=reduced, hooked=hook.take()))
        if "resumption" in job.observe:  # another rank may have failed
            steps[-1] = mistaken.resumed(steps[-1], case, plan, pipeline, description, recorder, failed=None)
        if "rounds" in job.observe:
            again = None
            if not description.capabilities.fresh_process_per_build:

                def again() -> CheckedPipeline:
                    return CheckedPipeline(adapter.build(plan), parameters=initials.given_names)

            lived_on = leaks.live_on(
                pipeline,
                build=again,
                run=lambda one: _run_quietly(case, plan, one, description.capabilities, recorder, run),
                group=groups.pipeline,
                device=ranks.device,
            )
    except Exception as error:
        raised = True
        debugger.post_mortem(error)
        if not job.case.is_mistaken or isinstance(error, ContractError):
            raise
        steps.append(StepShown(step=len(steps), forwards=recorder.take()))
        failed = mistaken.failed_by(error, step=len(steps) - 1)
        if "resumption" in job.observe:
            steps[-1] = mistaken.resumed(
                steps[-1], case, plan, pipeline, description, recorder, failed=failed
            )
        return structs.replace(nothing, failed=failed, steps=tuple(steps))
    finally:
        # With `lived_on` it was closed already, twice. After an error an engine that ends groups of its own could wait
        # there for other ranks, and the error would never be seen.
        if lived_on is None and (not raised or single or ends_after_errors()):
            pipeline.close()
    return structs.replace(
        nothing,
        build_changes=changes,
        keys=keys,
        boundaries=known,
        table=table,
        lived_on=lived_on,
        steps=tuple(steps),
    )


def _asked_of(description: contract.Description, case: Case) -> contract.Description:
    """The claims under the case's schedule.

    Those that all ranks must be asked about together are left out if some of the ranks may have failed.
    """
    capabilities = description.capabilities.under(description.capabilities.schedule(case.schedule))
    features = capabilities.features
    if case.world.misplan is not None:
        features -= {contract.Feature.GRADIENT_NORM}
    return dataclasses.replace(description, capabilities=dataclasses.replace(capabilities, features=features))


def _goes_without_outputs(job: Job, capabilities: contract.Capabilities) -> bool:
    """Whether training steps are asked to return no output."""
    return "no outputs" in job.observe and contract.Feature.OUTPUTS_ON_REQUEST in capabilities.features


def _program(
    case: Case,
    plan: Plan,
    pipeline: CheckedPipeline,
    capabilities: contract.Capabilities,
    recorder: ForwardRecorder,
    disturber: Disturber,
    mistakes: MistakeMaker,
    traffic: TrafficRecorder | None,
    run: Callable[..., StepShown],
) -> Iterator[StepShown]:
    for index, step in enumerate(case.program):
        recorder.step = index
        if traffic is not None:
            traffic.begin(index)
        with (
            examiner.telling(recorder.standing, of_frame=recorder.inside),
            disturber.during(step),
            mistakes.during(step, pipeline.owned()),
        ):
            yield run(case, index, plan, pipeline, capabilities, recorder)
    if traffic is not None:
        traffic.begin(len(case.program))


def _run_quietly(
    case: Case,
    plan: Plan,
    pipeline: CheckedPipeline,
    capabilities: contract.Capabilities,
    recorder: ForwardRecorder,
    run: Callable[..., StepShown],
) -> None:
    """Run the program's first run once more, clear its gradients and record nothing."""
    index = next(i for i, step in enumerate(case.program) if isinstance(step, Train | Eval))
    run(case, index, plan, pipeline, capabilities, recorder)
    pipeline.apply(contract.ZeroGrad())


def _listen(case: Case, pipeline: CheckedPipeline, recorder: ForwardRecorder) -> None:
    """Have stages that a front end made report what passes them, if gradients are observed: ours do so anyway."""
    if recorder.gradients is None or not cuts_are_known(case):
        return

    def ended(module: nn.Module, s: int, inputs: tuple[Any, ...], output: Any) -> None:
        training = any(part.training for part in module.modules())
        recorder.forward(s, inputs, output, [], training=training)

    for s, module in pipeline.owned().items():
        listen(module, s, watcher=recorder.gradients, ended=functools.partial(ended, module))


def _said(
    case: Case, pipeline: CheckedPipeline, capabilities: contract.Capabilities
) -> tuple[dict[int, tuple[str, ...]], tuple[Known, ...] | None]:
    """For stages that a front end made: the keys of their state dicts, and what they will hand on."""
    if case.model.split is None:
        return {}, None
    keys = {s: tuple(module.state_dict()) for s, module in pipeline.owned().items()}
    if capabilities.tracing is None or not capabilities.tracing.knows_boundaries:
        return keys, None
    return keys, tuple(
        Known(
            producer=one.producer,
            consumer=one.consumer,
            tensors=tuple((tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in one.tensors),
        )
        for one in pipeline.boundaries()
    )
