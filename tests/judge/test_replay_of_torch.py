"""What torch's runtime sends and receives, replayed: it gets through by default, with one option it does not."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

from pipeconform.judge.traffic.messages import exchange
from pipeconform.judge.traffic.replay import circle
from pipeconform.observe.traffic.recorder import TrafficRecorder
from pipeconform.observe.traffic.records import Traffic
from pipeconform.ranks.on_ranks import run_on_ranks

M = 2


def step(defer: bool) -> Traffic:
    rank = dist.get_rank()
    group = dist.new_group([0, 1])
    stage = PipelineStage(nn.Linear(1, 1), rank, 2, torch.device("cpu"), group=group)
    schedule = ScheduleInterleaved1F1B([stage], M, loss_fn=nn.functional.mse_loss, defer_pp_recv=defer)
    recorder = TrafficRecorder(given=group)
    with recorder.recording():
        schedule.step(torch.ones(M, 1)) if rank == 0 else schedule.step(target=torch.zeros(M, 1))
    dist.destroy_process_group(group)
    return recorder.traffic()


@pytest.mark.parametrize("defer", [False, True])
def test_deferred_receives_wait_in_a_circle_where_messages_are_taken_in_order(defer: bool) -> None:
    vector = run_on_ranks(step, defer, ranks=2)
    assert vector.ok, vector.describe()
    found = exchange(dict(enumerate(vector.values)))

    assert circle(found, ordered=False) is None
    assert (circle(found) is not None) is defer
