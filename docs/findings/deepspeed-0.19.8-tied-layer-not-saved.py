"""A tied layer that is used through a forward_fn is not in a stage's part of the checkpoint.

What: a TiedLayerSpec whose uses all have a forward_fn is missing from the checkpoint: there is no file for it,
  load_checkpoint says nothing, and the layer keeps the weights that it was made with. If one use has none, as an
  embedding does whose head has one, the tied weight comes back; what the head's stage has of its own in that layer,
  such as a bias, which it trains, does not.
Where: DeepSpeed 0.19.8, runtime/pipe/module.py, save_state_dict and load_state_dir: they ask the functions that the
  stage calls for a state_dict, and a layer with a forward_fn is called through functools.partial, which has none. Then
  the tied weights (tied_weight_attr), and no other ones, are broadcast.
Why it is one: the page "Model Checkpointing" of the documentation: training resumes from a checkpoint. By reading, any
  other layer whose file is missing is an error.
Requirement: none (LIF-10 is about them; the adapter gives tied layers no forward_fn).
Schedules: the one there is (TrainSchedule).
Known: no public thread found.
Possible fix: save and load the stage's tied_modules themselves, as they are registered, beside the functions.
"""

import io
import os
import sys
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path

os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK="0", GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WORLD = 2
SAVED, MADE_WITH = 1.0, 5.0


class Constant(nn.Linear):
    """A linear map whose weight and bias are a given number."""

    def __init__(self, value):
        super().__init__(1, 1)
        nn.init.constant_(self.weight, value)
        nn.init.constant_(self.bias, value)


def as_it_is(layer, x):
    return layer(x)


def engine_with(value, first_function):
    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

    module = PipelineModule(
        [
            TiedLayerSpec("tied", Constant, value, forward_fn=first_function),
            LayerSpec(Constant, value),
            LayerSpec(Constant, value),
            TiedLayerSpec("tied", Constant, value, forward_fn=as_it_is),
        ],
        num_stages=WORLD,
        loss_fn=nn.functional.mse_loss,
        partition_method="uniform",
    )
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.0),
        config={"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1},
    )
    return engine


def resumed(folder, first_function):
    first = engine_with(SAVED, first_function)
    first.train_batch(iter([(torch.ones(1, 1), torch.ones(1, 1))]))
    first.save_checkpoint(folder)
    dist.barrier()
    second = engine_with(MADE_WITH, first_function)
    second.load_checkpoint(folder)
    (other,) = (m for name, m in second.module.named_children() if name != "tied_modules")
    tied = second.module.tied_modules["tied"]
    files = sorted(path.name for path in Path(folder).glob("*/layer_*"))
    return (
        f"other layer {other.weight.item()} {other.bias.item()}; "
        f"tied weight {tied.weight.item()}, bias {tied.bias.item()}",
        files,
    )


def worker(rank, folder):
    warnings.simplefilter("ignore")
    sys.stdout = io.StringIO()  # the engine prints
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=100),
    )
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel("CRITICAL")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    lines = []
    for words, function in (("the head's", None), ("every", as_it_is)):
        said, files = resumed(f"{folder}/{words[0]}", function)
        if rank == 0:
            lines.append(f"{words} use with forward_fn: files {', '.join(name[:8] for name in files)}")
        lines.append(f"  stage {rank}, all {SAVED} when saved, loaded: {said}")
    Path(folder, f"{rank}.txt").write_text("".join(f"{line}\n" for line in lines))
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        processes = [mp.get_context("spawn").Process(target=worker, args=(r, folder)) for r in range(WORLD)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=200)
            process.kill()
        paths = [Path(folder, f"{rank}.txt") for rank in range(WORLD)]
        for path in paths:
            if not path.exists():
                sys.exit(f"inconclusive: a rank gave no result ({path.name})")
        zero, one = (path.read_text().splitlines() for path in paths)
        print("\n".join((*zero[:2], one[0], *zero[2:], one[1])))


if __name__ == "__main__":
    main()
