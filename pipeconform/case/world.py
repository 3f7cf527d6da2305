"""The processes of a case: how many there are, which form pipelines, and what disturbs them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pipeconform.case.misplans import Misplan
from pipeconform.case.model import Model
from pipeconform.case.orders import Order
from pipeconform.case.perturbations import AnyPerturbation
from pipeconform.case.replicas import Replicas, impossible_replicas
from pipeconform.case.strict import Strict
from pipeconform.case.tensor_parallel import TensorParallel, impossible_tensor_parallel

__all__ = ["World", "impossible_world"]


class World(Strict, frozen=True, kw_only=True):
    """The number of processes, those that form the pipeline in order, and what disturbs them.

    A `placement` lays the stages out differently from the schedule's claim; a `misplan` is a mistake in the plan of
    all ranks or of one. An `order` is the user's own, in the place of the schedule's.
    """

    size: int
    pipeline_ranks: tuple[int, ...]
    placement: Literal["", "loop", "v"] = ""
    perturbations: tuple[AnyPerturbation, ...] = ()
    misplan: Misplan | None = None
    replicas: Replicas | None = None
    tensor: TensorParallel | None = None
    order: Order | None = None
    rewritten: bool = False
    """Whether the schedule is written to a file and read again before it runs."""
    late_receives: bool = False
    """Whether receives are posted as late as possible."""
    second_schedule: bool = False
    """Whether a second schedule, which has no loss, evaluates the stages of the training schedule."""
    recompute: bool = False
    """Whether the engine computes stages again in the backward."""
    declared: Literal["", "exact", "examples"] = ""
    """What the user declares of the stages' boundaries: also which tensors need a gradient, or no more than examples
    of their shapes and dtypes."""

    @property
    def num_replicas(self) -> int:
        """How many copies of the pipeline there are, each with data of its own."""
        return 1 if self.replicas is None else 1 + len(self.replicas.others)

    @property
    def num_tensor_ranks(self) -> int:
        """The number of ranks over which every stage of a replica is cut."""
        return len(self.pipelines) // self.num_replicas

    @property
    def pipelines(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of every pipeline; number ``t * num_replicas + d`` is for tensor-parallel rank t of replica d."""
        others = () if self.replicas is None else self.replicas.others
        return (self.pipeline_ranks, *others, *(() if self.tensor is None else self.tensor.others))

    @property
    def is_mixed(self) -> bool:
        """Whether stages compute in bfloat16 with float32 parameters, because their wrapper does so."""
        return self.replicas is not None and self.replicas.mixed_precision

    @property
    def is_parallel(self) -> bool:
        """Whether stages are replicated or cut over ranks."""
        return self.replicas is not None or self.tensor is not None

    def pipeline_of(self, rank: int) -> int | None:
        """The number of the pipeline that `rank` belongs to; None for a bystander."""
        return next((number for number, ranks in enumerate(self.pipelines) if rank in ranks), None)

    def replica_of(self, rank: int) -> int | None:
        """The replica that `rank` belongs to; None for a bystander."""
        number = self.pipeline_of(rank)
        return None if number is None else number % self.num_replicas


def impossible_world(world: World, model: Model) -> Iterator[str]:
    """Yield the reasons why the pipelines of a world are impossible."""
    if world.declared and (world.misplan is not None or _cuts_more(world) or model.split is not None):
        yield (
            f"world.declared {world.declared!r} needs stages that are given one by one, each on one rank or with "
            f"no more than the tensors between them cut, without world.misplan"
        )
    if world.recompute and model.split is not None:
        yield "world.recompute needs stages that are given one by one: it cannot be combined with model.split"
    p = len(world.pipeline_ranks)
    if len(set(world.pipeline_ranks)) != p or not all(0 <= r < world.size for r in world.pipeline_ranks):
        yield f"world.pipeline_ranks {list(world.pipeline_ranks)} must be distinct ranks below world.size {world.size}"
    if list(world.pipeline_ranks) != sorted(world.pipeline_ranks):
        yield f"world.pipeline_ranks {list(world.pipeline_ranks)} must be ascending, as a process group's ranks are"
    if world.replicas is not None:
        yield from impossible_replicas(
            world.replicas, pipeline_ranks=world.pipeline_ranks, world_size=world.size
        )
    if world.tensor is None:
        return
    yield from impossible_tensor_parallel(
        world.tensor,
        model,
        pipelines=world.pipelines,
        num_replicas=world.num_replicas,
        world_size=world.size,
    )
    if world.replicas is not None and world.replicas.wrapper != "fully_shard":
        yield "world.tensor needs replicas in 'fully_shard': DistributedDataParallel takes no cut parameters"


def _cuts_more(world: World) -> bool:
    """Whether stages have replicas, or are cut in more than the tensors between them."""
    return world.replicas is not None or (world.tensor is not None and not world.tensor.boundary)
