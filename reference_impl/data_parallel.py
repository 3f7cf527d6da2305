"""A data-parallel wrapper: every replica computes with its own data, and all get the mean gradient.

What happens in a training step that synchronises:

1. Before the forward, the first rank's buffers replace those of all ranks (`Options.broadcast_buffers`).
2. The forward runs the module. Every tensor it returns gets a hook: the first to see a gradient begins the *pass*.
3. Each parameter's gradient is copied to its bucket as soon as backward has added it up. Complete buckets are
   reduced in their order, the same on every rank, while backward goes on.
4. At the end of backward the buckets that lack gradients are filled up and reduced, too. One small message says
   which parameters have a gradient on how many ranks. Then the means become the parameters' gradients.

A forward inside `DataParallel.no_sync` begins no pass, so its gradients only add up; the next pass reduces the sum.
`replica_join` lets ranks have different numbers of batches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.futures import Future

from .communication_hooks import Hook, all_reduce_hook, check_hook
from .deferred import materialise, own_device
from .errors import ReplicaError
from .gradient_buckets import Bucket, buckets_of
from .replica_join import BUFFERS, GRADIENTS, Attendance
from .replica_log import Log
from .replica_options import Options
from .replica_outputs import leaves_below, tensors_in
from .replica_precision import run_mixed
from .replica_state import broadcast, check_devices, verify

__all__ = ["DataParallel", "Options"]

_MIB = float(1 << 20)


class DataParallel(nn.Module):
    """`module`, synchronised with its replicas on the other ranks of `group`."""

    def __init__(
        self,
        module: nn.Module,
        *,
        group: ProcessGroup | None = None,
        options: Options | None = None,
        broadcasts: bool = True,
    ) -> None:
        """Compare the replicas and, with `broadcasts`, give all of them the first rank's parameters and buffers.

        Raises:
            ReplicaError: The modules differ; on every rank, with the parameters' names.
            ValueError: There is nothing to train, or it is on other devices.
        """
        super().__init__()
        self.module, self.options = module, options or Options()
        self.group: ProcessGroup = group or dist.group.WORLD  # type: ignore[assignment]
        self.attendance = Attendance(self.group, module)
        self._hook: tuple[Hook, Any] | None = None
        self._steps: dict[str, Callable[[], Any]] = {}
        """By parameter, what to do once its gradient is reduced."""
        self.alone, self.log = False, Log()
        self._synchronises, self._blind, self._in_pass, self._settled = True, False, False, False
        self._added, self._watched = list[Tensor](), list[Any]()
        self._arrivals: dict[str, int] = {}
        self._expected: dict[str, int] = {}
        """With a static graph, how often the gradient of each parameter is added to in a pass."""
        self._launched: list[Future[Tensor]] = []
        self._sparse = frozenset(
            f"{prefix}.weight".lstrip(".")
            for prefix, part in module.named_modules()
            if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse
        )
        self._take_up(broadcasts=broadcasts)

    def _take_up(self, *, broadcasts: bool) -> None:
        """Begin with the module's tensors as they are now."""
        kept = {n: p for n, p in self.module.named_parameters() if n not in self.options.ignored}
        self._parameters_kept = {name: p for name, p in kept.items() if p.requires_grad}
        if not self._parameters_kept:
            raise ValueError("no parameter requires a gradient: there is nothing to synchronise")
        check_devices(kept, self.options.device)
        self._on_meta = any(parameter.is_meta for parameter in kept.values())
        equal = broadcasts and not self._on_meta
        begin = self._begin_equal if equal else functools.partial(verify, group=self.group)
        begin({**kept, **self._buffers_kept()})
        self._buckets = self._lay_out(list(reversed(self._parameters_kept)))
        for name, parameter in self._parameters_kept.items():
            arrived = functools.partial(self._arrived, name)
            parameter.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]

    def materialise(self, device: torch.device | None = None) -> None:
        """Give memory and values to a module that was on the meta device; the first rank's parts initialise them.

        Raises:
            ReplicaError: A part has no ``reset_parameters()``.
        """
        materialise(self.module, device=device or own_device())
        self._take_up(broadcasts=True)

    def _begin_equal(self, tensors: Mapping[str, Tensor]) -> None:
        verify(tensors, self.group)
        broadcast(tensors.values(), self.group)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on this rank's own data."""
        if self._on_meta:
            raise ReplicaError("parameters are on the meta device: call materialise() before a forward")
        synchronises = self._synchronises and not self.alone
        trains = synchronises and torch.is_grad_enabled() and self.training
        self.attendance.announce(buffers=synchronises, gradients=trains)
        if synchronises and self.options.buffers_when == "before_forward":
            self.synchronise_buffers()
        if self.options.mixed_precision is None:
            result = self.module(*args, **kwargs)
        else:
            result = run_mixed(self.module, self.options.mixed_precision, args, kwargs)
        if synchronises and self.options.buffers_when == "after_forward":
            self.synchronise_buffers()
        if trains:
            tensors = [t for t in tensors_in(result) if t.requires_grad and not t.is_leaf]
            for tensor in tensors:
                tensor.register_hook(lambda _: self.begin_pass())  # type: ignore[no-untyped-call]
            if self.options.find_unused:  # adding nothing is no backward; adding up elsewhere is one
                watched = leaves_below(tensors)
                self._watched += [
                    one.register_post_accumulate_grad_hook(self._added.append) for one in watched
                ]
            self._blind = not tensors  # an unknown container: the first gradient begins the pass
        return result

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forwards within begin no pass; their gradients add up until one outside does."""
        before, self._synchronises = self._synchronises, False
        try:
            yield
        finally:
            self._synchronises = before

    @contextmanager
    def join(self, *, divide_by_initial: bool = True, raise_early: bool = False) -> Iterator[None]:
        """Surround a loop over batches; other ranks may have more or fewer of them.

        Means are over all ranks, or over those with a batch left unless `divide_by_initial`. With `raise_early`
        the first rank without one is an error everywhere. At the end all have the state of a rank that was last.
        """
        how = {"divide_by_initial": divide_by_initial, "raise_early": raise_early}
        with self.attendance.joining(self._stand_in, **how):
            yield
        state = [*self._parameters_kept.values(), *self._buffers_kept().values()]
        broadcast(state, self.group, source=self.attendance.source)
        self.attendance.source = 0

    def step_in_backward(self, optimizer_of: Callable[[nn.Parameter], torch.optim.Optimizer]) -> None:
        """Step every parameter as soon as its gradient is reduced, and clear the gradient."""

        def step(parameter: nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
            optimizer.step()
            parameter.grad = None

        for name, parameter in self._parameters_kept.items():
            self._steps[name] = functools.partial(step, parameter, optimizer_of(parameter))

    def change_group(self, group: ProcessGroup) -> None:
        """Go on with the replicas of `group`, between two steps; a rank outside is alone from now on."""
        self.alone = dist.get_rank(group) < 0
        if not self.alone:
            self.group, self.attendance = group, Attendance(group, self.module)
        self._settled, self._expected = False, {}
        self._buckets = self._lay_out(list(reversed(self._parameters_kept)))

    def full_state(self) -> Mapping[str, Tensor]:
        """The module's state dict, the same for any number of replicas."""
        return self.module.state_dict()

    def load_full_state(self, state: Mapping[str, Tensor]) -> None:
        """Load a module's state dict, the same on all ranks."""
        self.module.load_state_dict(state)

    def logged(self) -> dict[str, object]:
        """Facts about the wrapper; `seconds` is how long the last measured pass waited for reductions."""
        return {
            "world_size": dist.get_world_size(self.group),
            "rank": dist.get_rank(self.group),
            "module_name": type(self.module).__name__,
            "bucket_sizes": [bucket.buffer.numel() for bucket in self._buckets],
            "passes": self.log.passes,
            "seconds": self.log.seconds,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the module and the options; what comes back is wrapped anew, on all ranks, without a hook."""
        if self.group is not dist.group.WORLD:
            raise ReplicaError("only a wrapper for the default process group can be pickled: it has a name")
        return functools.partial(type(self), options=self.options, broadcasts=False), (self.module,)

    def reduce(self, used: Iterable[Tensor]) -> None:
        """Average what the parameters in `used` have added up, outside a backward; every rank names the same ones.

        For code that runs several backwards of `module` in a step, such as a pipeline's stage.
        """
        ours = {id(parameter) for parameter in used}
        self.synchronise_buffers()
        self._expect_all()
        self._arrivals = {name: 1 for name, p in self._parameters_kept.items() if id(p) in ours}
        self.end_pass(lenient=True)

    def _stand_in(self, what: int) -> None:
        """Take part in a step of the others without a batch."""
        if what & BUFFERS:
            self.synchronise_buffers()
        if what & GRADIENTS:
            own = {name: parameter.grad for name, parameter in self._parameters_kept.items()}
            for parameter in self._parameters_kept.values():
                parameter.grad = None
            self._expect_all()
            self.end_pass()
            for name, parameter in self._parameters_kept.items():
                parameter.grad = own[name]

    def register_comm_hook(self, state: Any, hook: Hook) -> None:
        """Let ``hook(state, bucket)`` reduce every bucket instead of one all-reduce.

        Raises:
            TypeError, ValueError: It is no such function.
            RuntimeError: There is a hook already.
        """
        check_hook(hook)
        if self._hook is not None:
            raise RuntimeError("a communication hook is registered already; a wrapper has one, for good")
        self._hook = (hook, state)

    def _buffers_kept(self) -> dict[str, Tensor]:
        # looked up every time: modules assign new tensors to their buffers
        return {n: b for n, b in self.module.named_buffers() if n not in self.options.ignored}

    def synchronise_buffers(self) -> None:
        """Make the buffers equal on all ranks, or let the user's hook do it."""
        buffers = self._buffers_kept()
        if self.options.buffer_hook is not None:
            # by .data: a batch norm's backward takes statistics that are changed after its forward for an error
            self.options.buffer_hook({name: buffer.data for name, buffer in buffers.items()}, self.group)
        elif self.options.broadcast_buffers and buffers:
            broadcast(buffers.values(), self.group, source=self.attendance.source)

    def begin_pass(self) -> None:
        """Expect every gradient; does nothing if the pass has begun, in a backward with several outputs."""
        if not self._in_pass:
            self._expect_all()
            # no public name tells when a backward ends; torch's own wrappers ask the same way
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)

    def _backward_ended(self) -> None:
        if not (self._arrivals or self._added):
            self._in_pass = False  # nothing was added up: the gradients were for a loss that contains them
            return
        while self._watched:
            self._watched.pop().remove()
        self.end_pass()

    def _expect_all(self) -> None:
        self._in_pass, self._blind = True, False
        self._added.clear()
        self._arrivals, self._launched = {}, []
        for bucket in self._buckets:
            bucket.missing = set(bucket.parameters)

    def _arrived(self, name: str, _: Tensor) -> None:
        """Record that backward has added up the gradient of a parameter."""
        if self._blind:
            self.begin_pass()
        if not self._in_pass:
            return
        self._arrivals[name] = count = self._arrivals.get(name, 0) + 1
        if self.options.static_graph and not self._settled:
            return  # how many gradients each parameter gets is known only at the end
        expected = self._expected.get(name, 1)
        if count > expected:
            self._in_pass = False
            raise ReplicaError(
                f"{name} got a gradient {count} times in one backward, expected {expected}: parts that run a backward "
                f"of their own (reentrant checkpoints) need static_graph"
            )
        if count == expected:
            bucket = next(b for b in self._buckets if name in b.parameters)
            self._put(bucket, name)
            self._launch_complete()

    def _put(self, bucket: Bucket, name: str) -> None:
        bucket.put(name, as_view=self.options.gradient_as_bucket_view)
        bucket.missing.discard(name)

    def _launch_complete(self) -> None:
        """Begin reductions in the buckets' order: another order on another rank would mix them up."""
        hook, state = self._hook or (all_reduce_hook, self.group)
        for bucket in self._buckets[len(self._launched) :]:
            if bucket.missing:
                return
            future = hook(state, bucket)
            if not callable(getattr(future, "wait", None)):
                self._in_pass = False
                raise TypeError(f"a hook returns a Future of a tensor, not {type(future).__name__}")
            self._launched.append(future)

    def end_pass(self, *, lenient: bool = False) -> None:
        """Reduce what is left, and hand out the means; `lenient` allows parameters without a gradient anywhere.

        Raises:
            ReplicaError: A parameter has no gradient on some rank, and was not allowed to; on every rank.
        """
        if not self._in_pass:
            return
        self._in_pass = False
        missing = [name for name, due in self._expected.items() if self._arrivals.get(name, 0) < due]
        for bucket in self._buckets:
            for name in tuple(bucket.missing):
                self._put(bucket, name)
        self._launch_complete()
        if missing and self._arrivals:
            raise ReplicaError(f"no gradient for {', '.join(missing)}, but with static_graph it stays")
        holders = self._holders(lenient=lenient or self.options.find_unused or self.options.static_graph)
        with self.log.reducing():
            self._hand_out(holders)
        if not self._settled:
            self._settle(holders)

    def _hand_out(self, holders: Mapping[str, int]) -> None:
        """Wait for the reductions, in order, and make the means the gradients."""
        scale = self.attendance.correction()
        for bucket, future in zip(self._buckets, self._launched, strict=True):
            reduced = future.wait()
            due, found = bucket.buffer.shape, getattr(reduced, "shape", None)
            if found != due:
                raise ValueError(f"the hook's result for bucket {bucket.index} has shape {found}, not {due}")
            if scale != 1.0:
                reduced = reduced.mul_(scale)
            for name in bucket.parameters:
                if holders[name]:
                    bucket.take(name, reduced, as_view=self.options.gradient_as_bucket_view)
                    self._steps.get(name, _nothing)()

    def _holders(self, *, lenient: bool) -> dict[str, int]:
        """The number of ranks on which each parameter has a gradient."""
        kept = self._parameters_kept
        if self._settled and self.options.static_graph:
            return dict.fromkeys(kept, 1)
        own = [name in self._arrivals or (lenient and p.grad is not None) for name, p in kept.items()]
        counts = torch.tensor(own, dtype=torch.int32, device=next(iter(kept.values())).device)
        dist.all_reduce(counts, group=self.group)
        holders = dict(zip(kept, counts.tolist(), strict=True))
        short = [name for name, count in holders.items() if count < self.attendance.present]
        if short and not lenient:
            raise ReplicaError(
                f"no gradient on some rank for {', '.join(short)} (on rank {dist.get_rank(self.group)} for "
                f"{', '.join(n for n, one in zip(kept, own, strict=True) if not one) or 'none'}): "
                f"use all parameters in every forward, or set find_unused"
            )
        return holders

    def _settle(self, holders: Mapping[str, int]) -> None:
        """After the first pass: the graph is known, and the order in which gradients come."""
        self._settled = True
        names = list(reversed(self._parameters_kept))
        if self.options.static_graph:
            self._expected = dict(self._arrivals)
            names = [name for name in names if holders[name]]
        if self.options.rebuild_buckets and not self.options.find_unused:
            order = [[*self._arrivals, *(name for name in names if name not in self._arrivals)]]
            dist.broadcast_object_list(order, group=self.group, group_src=0)
            names = [name for name in order[0] if name in names]
        self._buckets = self._lay_out(names)

    def _lay_out(self, names: list[str]) -> list[Bucket]:
        options, mixed = self.options, self.options.mixed_precision
        names = sorted(names, key=lambda name: name in options.delayed)
        return buckets_of(
            {name: self._parameters_kept[name] for name in names},
            bytes_each=[options.first_bucket_mib * _MIB, options.bucket_mib * _MIB],
            dtype=None if mixed is None else mixed.reduce_dtype,
            sparse=self._sparse,
            apart=options.delayed,
        )


def _nothing() -> None:
    """The action after most gradients are reduced: none."""
