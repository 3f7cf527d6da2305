"""The data-parallel wrapper against an unwrapped module over all replicas' data, on real ranks."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
import torch.distributed as dist
from pipeconform.reference_impl.communication_hooks import compress_hook
from pipeconform.reference_impl.data_parallel import DataParallel, Options
from pipeconform.reference_impl.errors import ReplicaError
from pipeconform.reference_impl.replica_precision import MixedPrecision
from torch import nn
from torch.distributed import rpc
from torch.utils.checkpoint import checkpoint

from pipeconform import run_on_ranks

RANKS = 2
TINY = {"bucket_mib": 1e-6, "first_bucket_mib": 1e-6}


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    rest: dict


class Two(nn.Module):
    """Two towers and a scale; `use` tells which towers run, `form` what they are returned in."""

    def __init__(self, *, form="tensor", recompute=None):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.form, self.recompute = form, recompute

    def forward(self, x, use="ab"):
        run = {"a": self.a, "b": self.b}
        if self.recompute is None:
            towers = [run[name](x) for name in use]
        else:
            x = x.detach().requires_grad_()
            towers = [checkpoint(run[name], x, use_reentrant=self.recompute) for name in use]
        y = sum(towers) * self.scale * self.frozen
        forms = {"tensor": y, "dict": {"x": [y]}, "pair": Pair(y, {"n": (y, 1)}), "opaque": {"hidden": y}}
        if self.form == "opaque":
            return type("Opaque", (), {"y": y})()
        return forms[self.form]


def loss_of(result):
    while not isinstance(result, torch.Tensor):
        if isinstance(result, dict):
            result = next(iter(result.values()))
        elif isinstance(result, Pair):
            result = result.first + result.rest["n"][0]
        elif isinstance(result, list | tuple):
            result = result[0]
        else:
            result = result.y
    return result.square().mean()


def made(seed=0, **how):
    torch.manual_seed(seed)
    return Two(**how).double()


def batches(step, count=RANKS):
    g = torch.Generator().manual_seed(step)
    return torch.randn(count, 6, 4, generator=g, dtype=torch.float64)


def gradients(module):
    return {n: None if p.grad is None else p.grad.detach().clone() for n, p in module.named_parameters()}


def expected(module, pairs):
    """The mean over replicas of what each computes from its batch, one (x, use) per replica."""
    plain = copy.deepcopy(module)
    plain.zero_grad()
    for x, use in pairs:
        (loss_of(plain(x, use)) / len(pairs)).backward()
    return gradients(plain)


def assert_same(found, due, atol=1e-12):
    for name, gradient in due.items():
        assert (found[name] is None) == (gradient is None), name
        if gradient is not None:
            torch.testing.assert_close(
                found[name], gradient, rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
            )


def on_ranks(function, *args, ranks=RANKS, **kwargs):
    return run_on_ranks(function, *args, ranks=ranks, **kwargs).values


def steps(options, *, how=None, use=("ab", "ab"), none=True, count=3):
    rank = dist.get_rank()
    module = made(seed=rank, **(how or {}))  # broadcast: the first rank's values are everybody's
    wrapper = DataParallel(module, options=Options(**options))
    for step in range(count):
        xs = batches(step)
        module.zero_grad(set_to_none=none)
        due = expected(module, list(zip(xs, use, strict=True)))
        loss_of(wrapper(xs[rank], use[rank])).backward()
        assert_same(gradients(module), due)
        with torch.no_grad():
            for p in module.parameters():
                if p.grad is not None:
                    p.sub_(0.1 * p.grad)
    return [p.detach().tolist() for p in module.parameters()]


@pytest.mark.parametrize("none", [True, False])
@pytest.mark.parametrize("view", [True, False])
@pytest.mark.parametrize(
    "more", [{}, TINY, {"static_graph": True}, {"find_unused": True}, {"rebuild_buckets": False}]
)
def test_gradients_are_the_mean_and_replicas_stay_equal(more, view, none):
    first, second = on_ranks(steps, {"gradient_as_bucket_view": view, **more}, none=none)

    assert first == second


@pytest.mark.parametrize("form", ["dict", "pair", "opaque"])
def test_outputs_may_be_nested_or_of_a_kind_nobody_knows(form):
    on_ranks(steps, TINY, how={"form": form})


@pytest.mark.parametrize(
    ("recompute", "options"),
    [(False, {}), (False, {"find_unused": True}), (True, {}), (True, {"static_graph": True})],
)
def test_activations_may_be_recomputed(recompute, options):
    on_ranks(steps, options, how={"recompute": recompute})


@pytest.mark.parametrize("use", [("a", "a"), ("a", "b"), ("ab", "b")])
@pytest.mark.parametrize(
    "options", [{"find_unused": True}, {"static_graph": True}, {"find_unused": True, **TINY}]
)
def test_parameters_may_be_unused_where_that_is_said(use, options):
    on_ranks(steps, options, use=use)


@pytest.mark.parametrize("use", [("a", "a"), ("ab", "b")])
def test_an_unused_parameter_is_an_error_on_every_rank_that_names_it(use):
    def run():
        wrapper = DataParallel(made())
        with pytest.raises(ReplicaError) as told:
            loss_of(wrapper(batches(0)[dist.get_rank()], use[dist.get_rank()])).backward()
        return str(told.value)

    unused = "b.weight, b.bias" if use == ("a", "a") else "a.weight, a.bias"
    assert all(f"no gradient on some rank for {unused}" in text for text in on_ranks(run))


@pytest.mark.parametrize("view", [True, False])
def test_no_sync_adds_up_nested_and_between_synchronised_steps(view):
    def run():
        rank, module = dist.get_rank(), made()
        wrapper = DataParallel(module, options=Options(gradient_as_bucket_view=view))
        loss_of(wrapper(batches(0)[rank])).backward()
        due = expected(module, [(x, "ab") for x in batches(0)])
        assert_same(gradients(module), due)
        module.zero_grad()
        with wrapper.no_sync():
            with wrapper.no_sync():
                loss_of(wrapper(batches(1)[rank])).backward()
            local = expected(module, [(batches(1)[rank], "ab")])
            assert_same(gradients(module), local)  # nothing is reduced yet
            inside = loss_of(wrapper(batches(2)[rank]))
        inside.backward()  # where the forward was decides
        loss_of(wrapper(batches(3)[rank])).backward()
        three = [expected(module, [(x, "ab") for x in batches(step)]) for step in (1, 2, 3)]
        due = {n: None if g is None else sum(one[n] for one in three) for n, g in three[0].items()}
        assert_same(gradients(module), due)

    on_ranks(run)


def test_two_forwards_before_one_backward():
    def run():
        rank, module = dist.get_rank(), made()
        wrapper = DataParallel(module)
        (loss_of(wrapper(batches(0)[rank])) + loss_of(wrapper(batches(1)[rank]))).backward()
        both = [expected(module, [(x, "ab") for x in batches(step)]) for step in (0, 1)]
        assert_same(gradients(module), {n: None if g is None else g + both[1][n] for n, g in both[0].items()})

    on_ranks(run)


def test_modules_that_differ_are_refused_on_every_rank_by_name():
    def run():
        module = nn.Sequential(nn.Linear(4, 3 + (dist.get_rank() == 1)))
        with pytest.raises(ReplicaError) as told:
            DataParallel(module)
        return str(told.value)

    for text in on_ranks(run, ranks=3):
        assert "0.weight is [3, 4] torch.float32 on rank 0, [4, 4] torch.float32 on rank 1" in text


def test_several_dtypes_layouts_and_a_shared_and_an_ignored_parameter():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
            self.wide, self.again = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
            self.again.weight = self.wide.weight
            self.own = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.again(self.wide((self.conv(x).mean((2, 3)) * self.own).double()))

    def run(view):
        rank = dist.get_rank()
        torch.manual_seed(rank)
        module = Mixed()
        module.own.data.fill_(rank + 1.0)
        options = Options(ignored=frozenset({"own"}), gradient_as_bucket_view=view, **TINY)
        wrapper = DataParallel(module, options=options)
        xs = torch.randn(RANKS, 2, 2, 5, 5, generator=torch.Generator().manual_seed(1))
        for _ in range(2):
            module.zero_grad()
            sums = None
            for r in range(RANKS):
                plain = copy.deepcopy(module)
                plain.zero_grad()
                plain.own.data.fill_(r + 1.0)
                plain(xs[r]).square().mean().backward()
                own = gradients(plain)
                sums = own if sums is None else {n: sums[n] + g for n, g in own.items()}
                if r == rank:
                    local = own["own"]
            wrapper(xs[rank]).square().mean().backward()
            due = {n: g / RANKS for n, g in sums.items()}
            due["own"] = local
            assert_same(gradients(module), due, atol=1e-6)
            assert module.conv.weight.grad.stride() == module.conv.weight.stride()
        assert torch.equal(module.own, torch.full((3,), rank + 1.0))

    on_ranks(run, True)
    on_ranks(run, False)


def test_sparse_gradients_are_averaged():
    def run():
        rank = dist.get_rank()
        torch.manual_seed(0)
        module = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
        wrapper = DataParallel(module)
        tokens = torch.tensor([[0, 1], [1, 4]])
        for _ in range(2):
            module.zero_grad()
            plain = copy.deepcopy(module)
            for one in tokens:
                (plain(one).square().mean() / RANKS).backward()
            wrapper(tokens[rank]).square().mean().backward()
            assert module[0].weight.grad.is_sparse
            torch.testing.assert_close(module[0].weight.grad.to_dense(), plain[0].weight.grad.to_dense())
            torch.testing.assert_close(module[1].weight.grad, plain[1].weight.grad)

    on_ranks(run)


def test_buffers_come_from_the_first_rank_or_stay_or_are_the_users():
    class Counting(nn.Module):
        def __init__(self, start):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))
            self.register_buffer("seen", torch.tensor([float(start)]))

        def forward(self, x):
            self.seen = self.seen + x  # assigned anew
            return self.w * x

    def run(**options):
        rank = dist.get_rank()
        module = Counting(rank * 10)
        wrapper = DataParallel(module, options=Options(**options))
        found = [module.seen.item()]
        for _ in range(2):
            wrapper(torch.full((1,), rank + 1.0)).sum().backward()
            found.append(module.seen.item())
        return found

    def mean(buffers, group):
        for buffer in buffers.values():
            dist.all_reduce(buffer, group=group)
            buffer.div_(dist.get_world_size(group))

    assert on_ranks(run) == ([0, 1, 2], [0, 2, 3])
    assert on_ranks(run, broadcast_buffers=False) == ([0, 1, 2], [0, 2, 4])
    assert on_ranks(run, buffer_hook=mean, buffers_when="after_forward") == ([0, 1.5, 3], [0, 1.5, 3])


def test_a_hook_has_state_and_its_result_is_the_gradient():
    def run(kind):
        rank, module = dist.get_rank(), made()
        wrapper = DataParallel(module, options=Options(**TINY))
        seen = []

        def minus(state, bucket):
            state.append((bucket.index, bucket.is_last))
            future = torch.futures.Future()
            future.set_result(-bucket.buffer)
            return future

        if kind == "minus":
            wrapper.register_comm_hook(seen, minus)
        else:
            wrapper.register_comm_hook(dist.group.WORLD, compress_hook(getattr(torch, kind)))
        loss_of(wrapper(batches(0)[rank])).backward()
        if kind == "minus":
            due = expected(module, [(batches(0)[rank], "ab")])
            assert_same(gradients(module), {n: None if g is None else -g for n, g in due.items()})
            assert seen == [(i, i == 4) for i in range(5)]
        else:
            due = expected(module, [(x, "ab") for x in batches(0)])
            assert_same(gradients(module), due, atol=0.05)
            assert any((gradients(module)[n] != g).any() for n, g in due.items() if g is not None)

    for kind in ("minus", "float16", "bfloat16"):
        on_ranks(run, kind)


@pytest.mark.parametrize("options", [{}, TINY])
def test_a_backward_that_reaches_no_parameter_takes_part(options):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3).double()

        def forward(self, x, use):
            return self.inner(x) if use else x * 2

    def run():
        torch.manual_seed(0)
        rank, module = dist.get_rank(), Scaled()
        wrapper = DataParallel(module, options=Options(find_unused=True, **options))
        for step, used in enumerate([(True, False), (False, True), (False, False), (True, True)]):
            module.zero_grad()
            x = batches(step)[rank].requires_grad_()
            y = wrapper(x, used[rank])
            (slope,) = torch.autograd.grad(y.sum(), x, retain_graph=True)  # a backward that adds up nothing
            y.square().sum().backward()
            due = copy.deepcopy(module)
            due.zero_grad()
            for other, use in enumerate(used):
                if use:
                    (due.inner(batches(step)[other]).square().sum() / RANKS).backward()
            assert_same(gradients(module), gradients(due))
            assert slope.shape == x.shape
            assert not wrapper._watched

    on_ranks(run)


def test_an_output_that_another_process_holds_is_refused(tmp_path):
    def run(folder):
        rank = dist.get_rank()
        there = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/agents")
        rpc.init_rpc(f"rank{rank}", rank=rank, world_size=RANKS, rpc_backend_options=there)
        try:
            wrapper = DataParallel(Elsewhere(f"rank{1 - rank}"))
            with pytest.raises(ReplicaError, match=f"a remote reference to what rank{1 - rank} holds"):
                wrapper(torch.ones(2))
        finally:
            rpc.shutdown()

    class Elsewhere(nn.Module):
        def __init__(self, holder):
            super().__init__()
            self.holder, self.inner = holder, nn.Linear(2, 2)

        def forward(self, x):
            return rpc.remote(self.holder, torch.add, args=(self.inner(x).detach(), 1))

    on_ranks(run, str(tmp_path))


def test_what_is_no_hook_is_refused():
    def annotated(state, bucket: int): ...

    def promising(state, bucket) -> int: ...

    def run():
        wrapper = DataParallel(made())
        with pytest.raises(TypeError, match="cannot be called"):
            wrapper.register_comm_hook(None, 3)
        with pytest.raises(ValueError, match="takes two arguments"):
            wrapper.register_comm_hook(None, lambda bucket: bucket)
        with pytest.raises(ValueError, match="second argument is a Bucket"):
            wrapper.register_comm_hook(None, annotated)
        with pytest.raises(ValueError, match="returns a Future"):
            wrapper.register_comm_hook(None, promising)
        wrapper.register_comm_hook(None, lambda state, bucket: bucket.buffer)
        with pytest.raises(RuntimeError, match="registered already"):
            wrapper.register_comm_hook(None, lambda state, bucket: bucket)
        with pytest.raises(TypeError, match="returns a Future of a tensor, not Tensor"):
            loss_of(wrapper(batches(0)[dist.get_rank()])).backward()

    on_ranks(run)


@pytest.mark.parametrize("initial", [True, False])
@pytest.mark.parametrize("counts", [(3, 1), (0, 2), (2, 2)])
def test_ranks_may_have_different_numbers_of_batches(counts, initial):
    def run():
        rank, module = dist.get_rank(), made()
        wrapper = DataParallel(module, options=Options(**TINY))
        plain = copy.deepcopy(module)
        with wrapper.join(divide_by_initial=initial):
            for step in range(counts[rank]):
                module.zero_grad()
                if step == 0:
                    with wrapper.no_sync():
                        loss_of(wrapper(batches(step)[rank]))
                loss_of(wrapper(batches(step)[rank])).backward()
                with torch.no_grad():
                    for p in module.parameters():
                        p.sub_(0.1 * (0 if p.grad is None else p.grad))
        for step in range(max(counts)):
            there = [r for r in range(RANKS) if step < counts[r]]
            due = expected(plain, [(batches(step)[r], "ab") for r in there])
            part = len(there) / RANKS if initial else 1
            with torch.no_grad():
                for name, p in plain.named_parameters():
                    p.sub_(0.1 * part * (0 if due[name] is None else due[name]))
        for one, other in zip(module.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one, other)
        return [p.tolist() for p in module.parameters()]

    first, second = on_ranks(run)
    assert first == second


def test_uneven_inputs_may_be_an_error_everywhere():
    def run():
        wrapper = DataParallel(made())

        def train():
            with wrapper.join(raise_early=True):
                for step in range(2 - dist.get_rank()):
                    loss_of(wrapper(batches(step)[dist.get_rank()])).backward()

        with pytest.raises(ReplicaError, match="rank 1 has no batches left"):
            train()

    on_ranks(run)


def test_mixed_precision_computes_in_one_dtype_and_keeps_another():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

        def forward(self, x):
            self.dtypes = (x.dtype, self.inner.weight.dtype, self.norm.running_mean.dtype)
            return self.norm(self.inner(x))

    def run():
        torch.manual_seed(0)
        module, rank = Normed(), dist.get_rank()
        mixed = MixedPrecision(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float64, buffer_dtype=torch.bfloat16
        )
        wrapper = DataParallel(module, options=Options(mixed_precision=mixed))
        own = copy.deepcopy(module).bfloat16()
        xs = batches(0).float()
        wrapper(xs[rank]).float().square().sum().backward()
        own(xs[rank].bfloat16()).float().square().sum().backward()
        due = [p.grad.double() for p in own.parameters()]
        for gradient in due:
            dist.all_reduce(gradient)
        assert module.dtypes == (torch.bfloat16,) * 3
        assert module.norm.running_mean.dtype == torch.float32
        assert module.norm.num_batches_tracked == 1
        assert module.norm.running_mean.abs().sum() > 0
        for p, gradient in zip(module.parameters(), due, strict=True):
            assert p.dtype == p.grad.dtype == torch.float32
            torch.testing.assert_close(p.grad.double(), gradient / RANKS, rtol=0.1, atol=0.1)

    on_ranks(run)


def test_a_part_that_runs_twice_with_its_own_backward_needs_a_static_graph():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            x = x.detach().requires_grad_()
            return checkpoint(self.inner, checkpoint(self.inner, x, use_reentrant=True), use_reentrant=True)

    def run():
        rank = dist.get_rank()
        torch.manual_seed(0)
        module = Twice().double()
        plain = copy.deepcopy(module)
        with pytest.raises(ReplicaError, match=r"inner\.(bias|weight) got a gradient 2 times"):
            DataParallel(copy.deepcopy(module))(batches(0)[rank]).square().mean().backward()
        wrapper = DataParallel(module, options=Options(static_graph=True))
        for step in range(3):
            module.zero_grad()
            plain.zero_grad()
            wrapper(batches(step)[rank]).square().mean().backward()
            for x in batches(step):
                (plain(x).square().mean() / RANKS).backward()
            assert_same(gradients(module), gradients(plain))

    on_ranks(run)
