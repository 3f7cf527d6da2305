"""With an encoder and a decoder, deallocate_pipeline_outputs frees what the decoder has received.

What: a stage of the decoder hands on what the encoder said beside its own output. With deallocate_pipeline_outputs both
  are freed, but the first is the stage's input, which its backward reads: the step ends in an error about shapes on the
  decoder's rank, and the others wait for it.
Where: NVIDIA/apex at tag 25.09 (August 2025, the last release that has apex.transformer; 0.1 in its setup.py),
  apex/transformer/pipeline_parallel/schedules/common.py, free_output_tensor (line 216) and forward_step (line 317).
Why: free_output_tensor empties every tensor of the list that forward_step returns, and the second one is the tensor
  that was received. Megatron-LM frees the first one only.
Why it is one: the docstring says "free the data of the output tensor of each pipeline stage". The repository's tests
  for encoder_and_decoder do not get there: none gives its model the type.
Requirement: none (models with an encoder and a decoder are not claimed; near FWD-28).
Schedules: forward_backward_pipelining_without_interleaving, the one that takes this type of model.
Known: no thread about this is known.
Possible fix: free the first tensor of the list.

The engine is made for CUDA; here its calls about CUDA mean the CPU, and its groups are made with gloo, for which a
function is replaced (E106).
"""

import os
import sys
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path

os.environ.update(GLOO_SOCKET_IFNAME="lo")
if not sys.warnoptions:
    warnings.simplefilter("ignore")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

torch.cuda.current_device, torch.cuda.synchronize = lambda: "cpu", lambda: None
torch.cuda.FloatTensor = torch.FloatTensor

from apex.transformer import parallel_state
from apex.transformer.enums import ModelType
from apex.transformer.pipeline_parallel import get_forward_backward_func, utils

parallel_state.new_process_group = lambda ranks, backend: dist.new_group(ranks)
WORLD, LENGTH, WIDTH, MICROBATCHES = 2, 2, 4, 2


class Encoder(nn.Module):
    model_type = ModelType.encoder_and_decoder

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def set_input_tensor(self, tensors):
        (self.encoded,) = tensors

    def forward(self, x):
        return self.layer(x)


class Decoder(Encoder):
    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(WIDTH, 1)

    def forward(self, x):
        return self.layer(x, self.encoded, self.encoded)[0]


def forward_step(microbatch, model):
    (x,) = microbatch
    return model(x.transpose(0, 1)), lambda output: (output.sum(), {})


def gradients_due(stages, data, rank):
    for x in data.split(1):
        stages[1].set_input_tensor([stages[0](x.transpose(0, 1))])
        (stages[1](x.transpose(0, 1)).sum() / MICROBATCHES).backward()
    return [parameter.grad for parameter in stages[rank].parameters()]


def worker(rank, folder, frees):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    parallel_state.initialize_model_parallel(1, WORLD, pipeline_model_parallel_split_rank_=1)
    utils.setup_microbatch_calculator(1, None, MICROBATCHES, 1, 1)
    torch.manual_seed(0)
    stages, data = [Encoder(), Decoder()], torch.randn(MICROBATCHES, LENGTH, WIDTH)
    try:
        get_forward_backward_func(None, WORLD)(
            forward_step,
            [data],
            [stages[rank]],
            forward_only=False,
            tensor_shape=(LENGTH, 1, WIDTH),
            decoder_sequence_length=LENGTH,
            deallocate_pipeline_outputs=frees,
        )
        found = [parameter.grad.clone() for parameter in stages[rank].parameters()]
        for stage in stages:
            stage.zero_grad()
        pairs = zip(found, gradients_due(stages, data, rank), strict=True)
        right = all(torch.allclose(one, due, atol=1e-6) for one, due in pairs)
        text = f"gradients {'right' if right else 'wrong'}"
    except RuntimeError as error:
        lost = "closed by peer" in str(error)
        text = "waits until the decoder's rank has ended" if lost else f"RuntimeError: {error}"
    Path(folder, f"{rank}").write_text(text)
    os._exit(0)


def main():
    for frees in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(worker, (folder, frees), nprocs=WORLD)
            for rank, name in enumerate(("encoder", "decoder")):
                print(f"deallocate_pipeline_outputs={frees}, {name}: {Path(folder, f'{rank}').read_text()}")


if __name__ == "__main__":
    main()
