"""What a rank process does with a case: build, run the program, record.

Runs in rank processes only; the controller names these functions and sends them MessagePack.
"""

from __future__ import annotations

import functools
import gc
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from msgspec import structs
from torch import nn

from pipeconform import adapter as contract
from pipeconform.adapter import Ranks
from pipeconform.case.build.mistakes import MistakeMaker
from pipeconform.case.build.whole import cuts_are_known
from pipeconform.case.case import Case, Eval, Restart, Train
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
from pipeconform.execute.planning import Fittings, owners_of, plan_of
from pipeconform.execute.randomness import random_state
from pipeconform.execute.replicas import AveragingHook
from pipeconform.execute.restarting import begun_anew, common_folder, restart
from pipeconform.execute.running import Running
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
                around = _Around(
                    context=context, groups=groups, traffic=traffic, reductions=reductions, kept=kept
                )
                observation = _run(structs.replace(job, case=case), adapter, description, around)
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


@dataclass(frozen=True, kw_only=True)
class _Around:
    """What surrounds one case on this rank."""

    context: RankContext
    groups: Groups
    traffic: TrafficRecorder | None
    """Records its communication, if anything does."""
    reductions: ReductionRecorder | None
    kept: KeptStages | None


def _ranks(case: Case, around: _Around, *, single: bool) -> Ranks:
    """Where this rank is; a `single` process has all stages."""
    context, groups, world = around.context, around.groups, case.world
    number = world.pipeline_of(context.rank) or 0
    members = world.pipelines[number]
    position = 0 if single else (members.index(context.rank) if context.rank in members else None)
    return Ranks(
        device=torch.device(context.device),
        rank=context.rank,
        world_size=context.world_size,
        pipeline_ranks=members,
        pipeline_rank=position,
        pipeline_group=groups.pipeline,
        replica=world.replica_of(context.rank) or 0,
        num_replicas=world.num_replicas,
        replica_groups=groups.replicas,
        tensor_rank=number // world.num_replicas,
        num_tensor_ranks=world.num_tensor_ranks,
        mesh=groups.mesh,
    )


def _seed(case: Case, ranks: Ranks) -> None:
    """Seed every generator that a stage could draw from."""
    random.seed(seed_of(case.seed, "python", ranks.rank))
    np.random.seed(seed_of(case.seed, "numpy", ranks.rank))
    seed_process(seed_of(case.seed, "rank", ranks.rank), device=str(ranks.device))


def _recorder(job: Job, around: _Around, *, device: torch.device) -> ForwardRecorder:
    """What watches the forwards of stages, as the job asks."""
    timeline = Timeline(Memory() if "memory" in job.observe else None) if "timeline" in job.observe else None
    if timeline is not None and around.reductions is not None:
        around.reductions.count = lambda: timeline.count
    return ForwardRecorder(
        timeline,
        around.traffic,
        gradients=Gradients() if "gradients" in job.observe else None,
        device=device,
    )


def _run(
    job: Job, adapter: contract.Adapter, description: contract.Description, around: _Around
) -> Observation:
    single = description.capabilities.world == "single_process"
    ranks = _ranks(job.case, around, single=single)
    case, description = planned_for(job.case, ranks.pipeline_rank), _asked_of(description, job.case)
    _seed(case, ranks)
    mistakes, initials = MistakeMaker(case), Initials(case)
    hook = AveragingHook(mistakes.reduction)
    recorder = _recorder(job, around, device=ranks.device)
    disturber = Disturber(case.world.perturbations, rank=ranks.pipeline_rank, replica=ranks.replica)
    fittings = Fittings(
        recorder=recorder,
        disturber=disturber,
        mistakes=mistakes,
        hook=hook,
        initials=initials,
        kept=around.kept,
    )
    plan = plan_of(case, description, ranks, fittings)
    claim = description.capabilities.schedule(case.schedule)
    if around.traffic is not None and claim is not None:
        around.traffic.neighbours = neighbours_of(case, plan, claim)
    before = random_state(ranks.device)
    nothing = Observation(rank=ranks.rank, pipeline_rank=ranks.pipeline_rank)

    def build(plan: contract.Plan = plan) -> CheckedPipeline:
        return CheckedPipeline(adapter.build(plan), parameters=initials.given_names)

    folder = None
    try:
        if any(isinstance(step, Restart) for step in case.program):
            folder = common_folder(around.context)
        pipeline = build()
    except Unsupported as reason:
        if job.case.world.misplan is not None:
            return structs.replace(nothing, failed=mistaken.failed_by(reason, step=None))
        return structs.replace(nothing, unsupported=str(reason))
    except Exception as error:
        debugger.post_mortem(error)
        if not job.case.is_mistaken or isinstance(error, ContractError):
            raise
        return structs.replace(nothing, failed=mistaken.failed_by(error, step=None))

    def restart_now() -> None:
        assert folder is not None
        other = plan_of(begun_anew(case), description, ranks, fittings)
        restart(
            pipeline, build=lambda: build(other), folder=folder, context=around.context, recorder=recorder
        )

    running = Running(
        case=case,
        plan=plan,
        pipeline=pipeline,
        capabilities=description.capabilities,
        recorder=recorder,
        initials=initials,
        sources=BatchSources(),
        restart=restart_now,
        returns_outputs=not _goes_without_outputs(job, description.capabilities),
    )
    lived_on: LivedOn | None = None
    steps: list[StepShown] = []
    raised = False
    try:
        changes = tuple(build_changes(case, pipeline, initials, before, device=ranks.device))
        declares = contract.Feature.DECLARED_TABLE in description.capabilities.features
        table = pipeline.table() if declares and "timeline" in job.observe else None
        keys, known = _said(running)
        _listen(running, disturber)
        recorder.forget()
        if around.reductions is not None:
            around.reductions.take()
        for shown in _program(running, disturber, mistakes, around.traffic):
            reduced = None if around.reductions is None else around.reductions.take()
            steps.append(structs.replace(shown, reductions=reduced, hooked=hook.take()))
        if "resumption" in job.observe:  # another rank may have failed
            steps[-1] = mistaken.resumed(steps[-1], running, failed=None)
        if "rounds" in job.observe:
            lived_on = leaks.live_on(
                pipeline,
                build=None if description.capabilities.fresh_process_per_build else build,
                run=lambda one: _run_quietly(replace(running, pipeline=one)),
                group=around.groups.pipeline,
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
            steps[-1] = mistaken.resumed(steps[-1], running, failed=failed)
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
    return replace(description, capabilities=replace(capabilities, features=features))


def _goes_without_outputs(job: Job, capabilities: contract.Capabilities) -> bool:
    """Whether training steps are asked to return no output."""
    return "no outputs" in job.observe and contract.Feature.OUTPUTS_ON_REQUEST in capabilities.features


def _program(
    running: Running, disturber: Disturber, mistakes: MistakeMaker, traffic: TrafficRecorder | None
) -> Iterator[StepShown]:
    """Run the program's steps one after the other."""
    program, recorder = running.case.program, running.recorder
    for index, step in enumerate(program):
        recorder.step = index
        if traffic is not None:
            traffic.begin(index)
        with (
            examiner.telling(recorder.standing, of_frame=recorder.inside),
            disturber.during(step),
            mistakes.during(step, running.pipeline.owned()),
        ):
            yield run_step(running, index)
    if traffic is not None:
        traffic.begin(len(program))


def _run_quietly(running: Running) -> None:
    """Run the program's first run once more, clear its gradients and record nothing."""
    index = next(i for i, step in enumerate(running.case.program) if isinstance(step, Train | Eval))
    run_step(running, index)
    running.pipeline.apply(contract.ZeroGrad())


def _listen(running: Running, disturber: Disturber) -> None:
    """Have stages report what passes them that do not do so themselves.

    Those that an engine has exported are the harness's no more. Those that a front end made of a whole model are
    listened to if gradients are observed.
    """
    case, recorder = running.case, running.recorder
    if case.model.split is not None and (recorder.gradients is None or not cuts_are_known(case)):
        return

    def ended(module: nn.Module, s: int, inputs: tuple[Any, ...], output: Any) -> None:
        training = any(part.training for part in module.modules())
        recorder.forward(s, inputs, output, [], training=training)

    for s, module in running.pipeline.owned().items():
        if case.model.split is not None:
            listen(module, s, watcher=recorder.gradients, ended=functools.partial(ended, module))
        elif s in recorder.replaced:
            listen(
                module,
                s,
                watcher=recorder.watcher,
                ended=functools.partial(ended, module),
                intruder=disturber if case.world.perturbations else None,
                begins=recorder.masks,
            )


def _said(running: Running) -> tuple[dict[int, tuple[str, ...]], tuple[Known, ...] | None]:
    """For stages that a front end made: the keys of their state dicts, and what they will hand on."""
    if running.case.model.split is None:
        return {}, None
    keys = {s: tuple(module.state_dict()) for s, module in running.pipeline.owned().items()}
    tracing = running.capabilities.tracing
    if tracing is None or not tracing.knows_boundaries:
        return keys, None
    return keys, tuple(
        Known(
            producer=one.producer,
            consumer=one.consumer,
            tensors=tuple((tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in one.tensors),
        )
        for one in running.pipeline.boundaries()
    )
