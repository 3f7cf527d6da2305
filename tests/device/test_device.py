"""The test device has what makes accelerators different from the CPU."""

from __future__ import annotations

import ctypes

import pytest
import torch

pytestmark = pytest.mark.xdist_group("device")


def test_memory_is_not_readable_by_the_processor(on_ranks):
    def read():
        return ctypes.string_at(torch.ones(4, device="testdev").data_ptr(), 4)

    (died,) = on_ranks(read)
    assert type(died).__name__ == "Died"
    assert "SIGSEGV" in str(died)


def trained(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 2)
    )
    data = torch.randn(3, 4)
    model, data = model.to(device), data.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for _ in range(2):
        model(data).pow(2).mean().backward()
        optimizer.step()
    return [p.grad.cpu().tolist() for p in model.parameters()]


@pytest.mark.parametrize("switches", [(), ("late",)], ids=["prompt", "late"])
def test_training_gives_the_numbers_of_the_cpu(on_ranks, switches):
    def both():
        return trained("testdev"), trained("cpu")

    ((ours, cpu),) = on_ranks(both, *switches).values
    for one, other in zip(ours, cpu, strict=True):  # not the bits: the CPU fuses some operators
        torch.testing.assert_close(torch.tensor(one), torch.tensor(other))


def normalised(device, dtype, parameters):
    torch.manual_seed(0)
    weight = torch.randn(4).to(parameters).to(device).requires_grad_()
    data = torch.randn(2, 4, 3).to(dtype).to(device)
    mean, variance = (one.to(parameters).to(device) for one in (torch.randn(4), 0.5 + torch.rand(4)))
    found = []
    for norm in (
        lambda value: torch.nn.functional.layer_norm(value.transpose(1, 2), (4,), weight),
        lambda value: torch.nn.functional.group_norm(value, 2, weight),
        lambda value: torch.nn.functional.batch_norm(value, None, None, weight, training=True),
        lambda value: torch.nn.functional.batch_norm(value, mean, variance, weight),
    ):
        value = data.clone().requires_grad_()
        norm(value).pow(2).sum().backward()
        found += [value.grad.float().tolist(), weight.grad.float().tolist()]
    return found


@pytest.mark.parametrize("parameters", [torch.float16, torch.float32], ids=["alike", "mixed"])
def test_statistics_of_half_precision_are_kept_as_the_processor_reads_them(on_ranks, parameters):
    def both():
        return [normalised(device, torch.float16, parameters) for device in ("testdev", "cpu")]

    ((ours, cpu),) = on_ranks(both, "late").values
    for one, other in zip(ours, cpu, strict=True):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(other))


def copied_out():
    target = torch.zeros(3, pin_memory=True)
    target.copy_(torch.ones(3, device="testdev"), non_blocking=True)
    early = target.tolist()
    torch.testdev.synchronize()
    return early, target.tolist()


def test_a_late_stream_has_not_written_what_is_read_too_early(on_ranks):
    assert on_ranks(copied_out, "late").values == (([0.0] * 3, [1.0] * 3),)
    assert on_ranks(copied_out).values == (([1.0] * 3, [1.0] * 3),)


def made_elsewhere(waits):
    here, there = torch.testdev.current_stream(), torch.testdev.Stream()
    value = torch.zeros(3, device="testdev")
    there.wait_stream(here)
    with torch.testdev.stream(there):
        value.add_(1)
    torch.testdev.set_switch("late", False)  # this stream does not run late, the other's work is queued
    if waits:
        here.wait_stream(there)
    return (value * 2).cpu().tolist()


def test_a_stream_that_does_not_wait_for_another_reads_old_values(on_ranks):
    def both():
        torch.testdev.synchronize()
        first = made_elsewhere(False)
        torch.testdev.synchronize()
        torch.testdev.set_switch("late", True)
        return first, made_elsewhere(True)

    ((early, right),) = on_ranks(both, "late").values
    assert early != [2.0] * 3
    assert right == [2.0] * 3


def reused(tells):
    there = torch.testdev.Stream()
    value = torch.full((64,), 5.0, device="testdev")
    torch.testdev.synchronize()
    with torch.testdev.stream(there):
        copy = value.clone()
    if tells:
        value.record_stream(there)
    torch.testdev.set_switch("late", False)
    del value  # its memory is free for this stream
    torch.full((64,), 7.0, device="testdev")
    there.synchronize()
    torch.testdev.set_switch("late", True)
    return copy.cpu()[0].item()


def test_freed_memory_is_reused_while_another_stream_reads_it_unless_that_was_recorded(on_ranks):
    def both():
        return reused(False), reused(True)

    ((overwritten, kept),) = on_ranks(both, "late").values
    assert overwritten != 5.0
    assert kept == 5.0


def test_the_generator_is_the_devices_own(on_ranks):
    def draw():
        torch.manual_seed(3)
        cpu = torch.get_rng_state()
        state = torch.testdev.get_rng_state()
        first = torch.rand(3, device="testdev").tolist()
        dropped = torch.nn.functional.dropout(torch.ones(64, device="testdev")).tolist()
        torch.testdev.set_rng_state(state)
        again = torch.rand(3, device="testdev").tolist()
        dropped_again = torch.nn.functional.dropout(torch.ones(64, device="testdev")).tolist()
        own = torch.Generator(device="testdev").manual_seed(3)
        return {
            "again": (first, dropped) == (again, dropped_again),
            "of a generator": torch.rand(3, generator=own, device="testdev").tolist() == first,
            "the CPU's state stays": bool(torch.equal(cpu, torch.get_rng_state())),
            "the CPU's numbers": torch.rand(3).tolist() == first,
        }

    (own,) = on_ranks(draw, "own-numbers").values
    assert own == {
        "again": True,
        "of a generator": True,
        "the CPU's state stays": True,
        "the CPU's numbers": False,
    }
    (same,) = on_ranks(draw).values
    assert same["the CPU's numbers"]


def recomputed():
    value = torch.ones(64, device="testdev", requires_grad=True)
    dropped = torch.utils.checkpoint.checkpoint(
        torch.nn.functional.dropout, value, use_reentrant=False, preserve_rng_state=True
    )
    (dropped * dropped).sum().backward()
    return dropped.tolist(), value.grad.tolist()


def test_a_recomputation_draws_the_random_numbers_of_the_forward(on_ranks):
    """torch looks for ``_initialized`` in the device's module, and keeps no state of a device without it."""
    ((dropped, gradient),) = on_ranks(recomputed, "own-numbers").values
    assert gradient == [4 * one for one in dropped]


def test_without_float64_no_tensor_has_it(on_ranks):
    def refused():
        with pytest.raises(TypeError, match="does not support float64"):
            torch.ones(2, dtype=torch.float64).to("testdev")
        return torch.ones(2, device="testdev").sum().item()

    assert on_ranks(refused, "no-float64").values == (2.0,)


def test_a_product_of_two_dtypes_raises_where_it_is_called(on_ranks):
    """As an accelerator's does; an error that shows with whatever waits next is one in another place."""

    def multiply():
        one, other = (torch.ones(2, 2, device="testdev", dtype=d) for d in (torch.float32, torch.float16))
        with pytest.raises(RuntimeError, match="same dtype"):
            one @ other
        torch.accelerator.synchronize()
        return (one @ one).sum().item()

    assert on_ranks(multiply, "late").values == (8.0,)


def test_there_are_several_devices(on_ranks):
    def several():
        before = torch.testdev.current_device()
        one = torch.ones(2, device="testdev:1")
        with torch.testdev.device(2):
            two = torch.zeros(2, device="testdev")
        two.copy_(one)
        with pytest.raises(RuntimeError, match="on the same device"):
            torch.dot(one, two)
        return str(one.device), str(two.device), two.cpu().tolist(), torch.testdev.current_device() - before

    assert on_ranks(several).values == (("testdev:1", "testdev:2", [1.0, 1.0], 0),)


def test_a_waiting_thread_spins_if_it_is_to(on_ranks):
    def waited():
        import time

        torch.testdev.synchronize()
        event = torch.testdev.Event()
        torch.ones(2, device="testdev")
        event.record()
        begin = time.thread_time()
        deadline = time.monotonic() + 5
        while not event.query() and time.monotonic() < deadline:
            time.sleep(0.001)  # nothing requires the work: it runs when it is due
        return event.query(), time.thread_time() - begin < 1

    assert on_ranks(waited, "late", "spins").values == ((True, True),)
