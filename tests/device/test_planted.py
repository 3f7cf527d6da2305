"""Mistakes that the harness could have: each shows on the device, with one of its properties, and on the CPU never.

What a mistake breaks is done three times: by the harness as it is, on the device, and with the mistake on both. Planted
mistakes that whole runs show are in `test_verdicts`.
"""

from __future__ import annotations

import functools

import pytest

from pipeconform import run_on_ranks
from pipeconform.case.case import Load, Train
from pipeconform.ranks import evidence
from tests import tenths
from tests.case.examples import small_case, with_model

pytestmark = pytest.mark.xdist_group("device")


_WITHOUT_THE_DEVICE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
"""Processes of their own: those without any settings are kept for tests of other modules, which have no device."""


@pytest.fixture
def done(on_ranks):
    """Do something on the ranks of the device and of the CPU, with a mistake or without; return what came out."""

    def do(function, *switches, on="testdev", mistake=None, ranks=1, **options):
        call = functools.partial(_with_mistake, function, mistake, on)
        if on == "cpu":
            return _outcome(run_on_ranks(call, ranks=ranks, environment=_WITHOUT_THE_DEVICE, **options))
        return _outcome(on_ranks(call, *switches, ranks=ranks, **options))

    return do


def _with_mistake(function, mistake, on):
    import pytest
    import torch

    with pytest.MonkeyPatch.context() as patch:
        if mistake is not None:
            mistake(patch)
        return function(torch.device(on) if on == "cpu" else torch.device(on, torch.testdev.current_device()))


def _outcome(vector):
    if vector.ok:
        return vector.values[0]
    return {type(one).__name__ for one in vector}


def forward_on_another_stream(device):
    """A stage computes on a stream of its own that no other stream waits for: its result is not the engine's yet."""
    import torch

    from pipeconform.observe.recorder import ForwardRecorder

    recorder = ForwardRecorder(device=device)
    value = torch.ones(3, device=device)
    if device.type == "cpu":
        recorder.forward(0, (value,), value * 2, [], training=True)
    else:
        side = torch.Stream(device=device)
        side.wait_stream(torch.accelerator.current_stream(device))
        with side:
            recorder.forward(0, (value,), value * 2, [], training=True)
    (forward,) = recorder.take()
    return forward.output.leaves()[0].tensor().tolist()


def copies_are_read_without_their_event(patch):
    import torch
    from torch.utils import _pytree as tree

    from pipeconform.observe import recorder

    def copied(values, *, device):
        copies = tree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), values)
        return lambda: copies

    patch.setattr(recorder, "copied", copied)


def test_copies_that_are_read_without_their_event(done):
    do = functools.partial(done, forward_on_another_stream, "late")
    assert do() == [2.0] * 3
    assert do(mistake=copies_are_read_without_their_event) != [2.0] * 3
    assert do(on="cpu", mistake=copies_are_read_without_their_event) == [2.0] * 3


def a_result_used_before_it_is_ready(device):
    """An engine uses on one stream what another still computes: it must not be right because it was recorded."""
    import torch

    from pipeconform.observe.recorder import ForwardRecorder

    recorder = ForwardRecorder(device=device)
    value = torch.ones(3, device=device)
    if device.type == "cpu":
        recorder.forward(0, (value,), output := value * 2, [], training=True)
        return (output + 1).tolist()
    side = torch.Stream(device=device)
    side.wait_stream(torch.accelerator.current_stream(device))
    with side:
        output = value * 2
        recorder.forward(0, (value,), output, [], training=True)
    return (output + 1).tolist()


def recording_waits_for_the_device(patch):
    import torch

    from pipeconform.observe import recorder

    right = recorder.copied

    def copied(values, *, device):
        made = right(values, device=device)
        torch.accelerator.synchronize()
        return made

    patch.setattr(recorder, "copied", copied)


def test_a_recorder_that_waits_hides_what_an_engine_forgot_to_order(done):
    do = functools.partial(done, a_result_used_before_it_is_ready, "late")
    assert do() != [3.0] * 3
    assert do(mistake=recording_waits_for_the_device) == [3.0] * 3
    assert do(on="cpu") == do(on="cpu", mistake=recording_waits_for_the_device) == [3.0] * 3


def received(device):
    """What a receive brings into memory that held poison until then."""
    import torch

    from pipeconform.observe.traffic.buffers import Received

    target = torch.zeros(4, device=device)
    guarded = Received(target)
    guarded.memory.fill_(5)
    untouched = bool(guarded.complete())
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return untouched, target.tolist()


def poison_on_another_stream(patch):
    import torch

    from pipeconform.observe.traffic.buffers import Received

    right = Received.__init__

    def init(self, tensor):
        if tensor.is_cpu:
            right(self, tensor)
            return
        with torch.Stream(device=tensor.device):
            right(self, tensor)

    patch.setattr(Received, "__init__", init)


def test_poison_that_takes_its_turn_in_another_stream(done):
    do = functools.partial(done, received, "late")
    assert do() == (True, [5.0] * 4)
    assert do(mistake=poison_on_another_stream) != (True, [5.0] * 4)
    assert do(on="cpu", mistake=poison_on_another_stream) == (True, [5.0] * 4)


def drawn_on_the_device(device):
    import torch

    from pipeconform.execute import randomness

    before = randomness.random_state(device)
    torch.rand(1, device=device)
    return randomness.moved(before, device)


def only_the_generator_of_the_cpu(patch):
    import torch

    from pipeconform.execute import randomness

    patch.setattr(randomness, "random_state", lambda device: (torch.get_rng_state(),))


def test_random_numbers_that_only_the_device_has_drawn(done):
    do = functools.partial(done, drawn_on_the_device, "own-numbers")
    assert do() is True
    assert do(mistake=only_the_generator_of_the_cpu) is False
    assert do(on="cpu", mistake=only_the_generator_of_the_cpu) is True


def an_error_while_a_receive_is_pending(device):
    import torch
    import torch.distributed as dist

    from pipeconform.execute import groups

    group = dist.new_group([0, 1])
    value = torch.ones(1, device=device)
    dist.all_reduce(value, group=group)
    if dist.get_rank() == 0:
        dist.irecv(value, 1, group=group)
    met = torch.ones(1, device=device)
    dist.all_reduce(met)
    assert met.item() == 2  # both ranks have finished the reduction before either ends its group
    groups._end_after_error(group)
    return groups.is_there(group)


def groups_are_destroyed_after_errors(patch):
    from pipeconform.execute import groups

    patch.setattr(groups, "_end_after_error", groups._destroy_if_there)


def test_a_group_that_is_destroyed_after_an_error_instead_of_aborted(done):
    do = functools.partial(done, an_error_while_a_receive_is_pending, "flushes", "async-wait", ranks=2)
    assert do() is False
    assert "Stuck" in do(mistake=groups_are_destroyed_after_errors, idle_limit=0.5)
    assert do(on="cpu", mistake=groups_are_destroyed_after_errors) is False


def connected(device):
    import torch.distributed as dist

    from pipeconform.ranks import connecting

    try:
        connecting.connect(device, backend=dist.get_backend())
    except connecting.NotConnectedError as error:
        return "do not work together" in str(error)
    return "connected"


def groups_are_tried_with_tensors_of_the_cpu(patch):
    import torch

    from pipeconform.ranks import connecting

    right = connecting._sum_of_ranks
    patch.setattr(connecting, "_sum_of_ranks", lambda device: right(torch.device("cpu")))


def test_a_group_that_is_tried_with_a_tensor_of_the_cpu(done):
    do = functools.partial(done, connected, "device-only", ranks=2)
    assert do() == "connected"
    assert do(mistake=groups_are_tried_with_tensors_of_the_cpu) is True
    assert do(on="cpu", mistake=groups_are_tried_with_tensors_of_the_cpu) == "connected"


def a_long_computation(device):
    """The thread that computes is the device's; the task's thread sleeps until the result is there."""
    import torch

    value = torch.ones(1024, 1024, device=device) / 1024
    for _ in range(400):
        value = value @ value
    return round(value.sum().item())


@tenths.long
def test_ranks_that_are_watched_by_their_main_thread_only(done, monkeypatch):
    do = functools.partial(done, a_long_computation, idle_limit=0.2)
    right = evidence._threads

    def only_main(pid, *, depth):
        return (found for found in right(pid, depth=depth) if found[0] == f"{pid}/{pid}")

    assert do("late") == 1024
    monkeypatch.setattr(evidence, "_threads", only_main)
    assert do(on="cpu") == 1024
    assert do("late") == {"Stuck"}


CASE = with_model(small_case(), dtype="float32")
LOADED = small_case(program=(Load(), Train(batch_size=2, num_microbatches=1)))


def bounded(device):
    """Whether the oracle has bounds for a case in float32."""
    from pipeconform.adapter import GradientScale
    from pipeconform.oracle import full_model

    found = full_model.reference(CASE, scale=GradientScale(), bounds="running", device=str(device))
    return bool(found.steps[0].gradient_bounds)


def bounded_after_loading(device):
    """Whether the oracle has bounds for parameters that were loaded, in float64 and on the device."""
    from pipeconform.adapter import GradientScale
    from pipeconform.oracle import full_model

    found = full_model.reference(LOADED, scale=GradientScale(), bounds="running", device=str(device))
    return bool(found.steps[-1].parameter_bounds)


def what_is_loaded_stays_where_it_was_drawn(patch):
    from pipeconform.case.build import data

    drawn = data.loaded_state

    class OnTheCpu(dict):
        def items(self):
            for name, value in super().items():
                value.to = lambda device, value=value: value
                yield name, value

    patch.setattr(data, "loaded_state", lambda *given: {s: OnTheCpu(own) for s, own in drawn(*given).items()})


def bounds_are_computed_on_the_device(patch):
    from pipeconform.oracle import full_model

    patch.setattr(full_model, "where_bounds_are_computed", str)


def test_bounds_that_are_computed_where_there_is_no_float64(done):
    do = functools.partial(done, bounded, "no-float64")
    assert do() is True
    assert do(mistake=bounds_are_computed_on_the_device) == {"Raised"}
    assert do(on="cpu", mistake=bounds_are_computed_on_the_device) is True


def test_a_state_that_is_loaded_from_the_cpu(done):
    do = functools.partial(done, bounded_after_loading)
    assert do() is True
    assert do(mistake=what_is_loaded_stays_where_it_was_drawn) == {"Raised"}
    assert do(on="cpu", mistake=what_is_loaded_stays_where_it_was_drawn) is True
