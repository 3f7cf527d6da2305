"""With activation checkpointing, layers behind an embedding get no gradient, some of them without an error.

What: the first layer is an nn.Embedding, and PipelineModule has activation_checkpoint_interval=1. If the
  embedding is used again as the last layer (TiedLayerSpec with a forward_fn), a model on one rank is trained
  without an error: the loss is right, the layers between get no gradient at all, and the embedding only that
  of its second use. On two ranks the layers of stage 0 get none, without an error, up to a layer that
  checkpointable_layers leaves out. Without such layers the step raises: on one rank an AssertionError about
  the loss, on two "element 0 of tensors does not require grad" on rank 0, and rank 1 waits. With the
  interval 0, or with use_reentrant=False, all gradients are right.
Where: DeepSpeed 0.19.8, runtime/activation_checkpointing/checkpointing.py, CheckpointFunction.forward, line
  626: layers run under no_grad, so that an output requires a gradient only if one of the inputs does;
  runtime/pipe/engine.py, _exec_load_micro_batch, lines 900 and 909: the model's inputs are made to require
  one if they are floating; runtime/pipe/module.py, _is_checkpointable, lines 672 to 689, and forward, line
  391.
Why: tokens cannot require a gradient. A comment in _is_checkpointable says that the reentrant function must
  not be used for embeddings, but only GPTModelPipe and GPT2ModelPipe, asked by their names, are spared: in
  others every layer with parameters is checkpointed. Its output requires no gradient, nor does that of the
  next, up to a layer that is not checkpointed: one that is not listed, or a function, as a forward_fn makes
  one.
Requirement: TRN-30.
Schedules: TrainSchedule, one stage or more; the error under DualPipeV, too.
Known: https://github.com/deepspeedai/DeepSpeed/issues/688 (open), issues/4274 (open) and issues/4479
  (closed) are about the error; about layers that silently get no gradient none was found.
  use_reentrant=False came with DeepSpeed#4224, and is not the default.
Possible fix: in PipelineModule.forward, call the reentrant function only if an input requires a gradient.
"""

import io
import os
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path

os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK="0", GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

VOCABULARY, HIDDEN = 5, 4
TOKENS, TARGETS = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3])
CASES = {  # by the number of ranks: the model, activation_checkpoint_interval, use_reentrant
    1: (
        ("tied", 0, True),
        ("tied", 1, True),
        ("tied", 1, False),
        ("plain", 1, True),
    ),
    2: (
        ("norm not listed", 0, True),
        ("norm not listed", 1, True),
        ("norm not listed", 1, False),
        ("plain", 0, True),
        ("plain", 1, True),  # last, as it leaves rank 1 waiting
    ),
}


def logits(embedding, x):
    return x @ embedding.weight.t()


def layers_of(model):
    from deepspeed.pipe import TiedLayerSpec

    torch.manual_seed(0)
    if model == "tied":
        sizes = ("embedding", nn.Embedding, VOCABULARY, HIDDEN)
        return [TiedLayerSpec(*sizes), nn.Linear(HIDDEN, HIDDEN), TiedLayerSpec(*sizes, forward_fn=logits)]
    first, last = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, VOCABULARY)
    if model == "plain":
        return [first, last]
    middle = [
        nn.Linear(HIDDEN, HIDDEN),
        nn.LayerNorm(HIDDEN),
        nn.Linear(HIDDEN, HIDDEN),
        nn.LayerNorm(HIDDEN),
    ]
    return [first, *middle, last]


def expected(functions, parameters):
    output = TOKENS
    for function in functions:
        output = function(output)
    loss = nn.functional.cross_entropy(output, TARGETS)
    return loss.detach(), torch.autograd.grad(loss, parameters)


def trained(world, model, interval, reentrant):
    import deepspeed
    from deepspeed.pipe import PipelineModule

    layers = layers_of(model)
    module = PipelineModule(
        layers,
        num_stages=world,
        loss_fn=nn.functional.cross_entropy,
        partition_method="uniform",
        activation_checkpoint_interval=interval,
        checkpointable_layers=["Embedding", "Linear"] if model == "norm not listed" else None,
    )
    names, parameters = zip(*module.named_parameters(), strict=True)
    before = [parameter.detach().clone() for parameter in parameters]
    loss, gradients = expected(module.forward_funcs if world == 1 else layers, parameters)
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 0.0,
            "pipeline": {"use_reentrant": reentrant},
        },
    )
    try:
        actual = engine.train_batch(iter([(TOKENS, TARGETS)]))
    except (AssertionError, RuntimeError) as error:
        return f"{type(error).__name__} {str(error).split('.')[0]!r}"
    missing, wrong = [], []
    for name, parameter, old, gradient in zip(names, parameters, before, gradients, strict=True):
        moved = old - parameter.detach()  # the gradient, as the learning rate is 1
        if not torch.allclose(moved, gradient, atol=1e-6):
            (wrong if moved.any() else missing).append(name)
    text = "loss right" if torch.allclose(actual, loss) else "loss wrong"
    text += f"; no gradient: {', '.join(missing)}" if missing else ""
    text += f"; wrong gradient: {', '.join(wrong)}" if wrong else ""
    return text if missing or wrong else f"{text}, gradients right"


def worker(rank, world, folder):
    warnings.simplefilter("ignore")
    sys.stdout = io.StringIO()  # the engine prints
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous{world}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel("ERROR")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    lines = []
    for model, interval, reentrant in CASES[world]:
        text = trained(world, model, interval, reentrant)
        case = f"{world} rank{'s' * (world > 1)}, {model}, interval={interval}, use_reentrant={reentrant}"
        lines.append(f"{case}: expected loss right, gradients right; actual {text}\n")
    if rank == 0:
        Path(folder, f"{world}.part").write_text("".join(lines))
        Path(folder, f"{world}.part").rename(Path(folder, f"{world}.txt"))
    while not Path(folder, "end").exists():  # a closing socket would wake the other rank up
        time.sleep(0.1)
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        make = mp.get_context("spawn").Process
        firsts = {world: make(target=worker, args=(0, world, folder)) for world in CASES}
        processes = [*firsts.values(), make(target=worker, args=(1, 2, folder))]
        for process in processes:
            process.start()
        results = {world: Path(folder, f"{world}.txt") for world in CASES}
        while any(firsts[world].is_alive() and not results[world].exists() for world in CASES):
            time.sleep(0.1)
        Path(folder, "end").touch()
        for process in processes:
            process.join(timeout=1)
            process.kill()
        for world, path in results.items():
            print(path.read_text() if path.exists() else f"{world} ranks: no result\n", end="")


if __name__ == "__main__":
    main()
