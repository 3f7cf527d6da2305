"""Taking a step of Adam back leaves negative second moments, and the next step makes parameters NaN.

What: with `--enable-optimizer-post-validation` a stage steps before it knows whether a later stage has an overflow or
  a norm to clip, and takes the step back if so. What is computed back is not what was there: where the second moment
  was 0, as in the rows of an embedding whose tokens are new in this batch, it is less than 0 afterwards. The next step
  in which that row has no gradient takes the root of it, and the row is NaN for good. Without post validation the
  step is left out, and all is well. Overflows are usual with float16, which the option asks for.
Where: sail-sg/zero-bubble-pipeline-parallelism at 39f2c186 (May 2025, megatron-core 0.9.0rc0),
  megatron/core/optimizer/zbpp_optimizer_helper.py, rollback_adamw (line 133), called by
  MixedPrecisionOptimizer.post_validation in optimizer.py (line 727).
Why: v + (beta2 - 1) * g * g is not 0 for a v that was rounded. In apex's kernel 1 - beta2 is computed in float32, and
  v is smaller than what is subtracted for every g; with constants in float64, as torch's optimizers have them, rounding
  makes it so for half of them.
Why it is one: the README says that "a rollback will be issued and then we redo the optimizer step based on the fully
  reduced global state"; numbers may differ without `--enable-exactly-numeric-match`, but NaN is no rounding.
Requirement: none (the adapter's optimizer is torch's; near TRN-17).
Schedules: ZB1P, ZB2P, ZBV, V-Half and V-Min with post validation (here only the optimizer's function is run).
Known: no thread about this is known.
Possible fix: keep a copy of the moments, as `--enable-exactly-numeric-match` does, or clamp v at 0.

The engine steps with apex's FusedAdam, a CUDA kernel. Here it is written out in torch, in float32 as there.
"""

import importlib.util
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch

LR, BETAS, EPS, DECAY = 1e-3, (0.9, 0.999), 1e-8, 0.1
ROWS, WIDTH, SEEN, NEW = 200, 50, slice(0, 100), slice(100, 200)
SEEN_BEFORE = 10  # steps without clipping, after which post validation begins


class FusedAdam(torch.optim.Optimizer):
    """What apex's kernel computes with adam_w_mode, for float32."""

    capturable, adam_w_mode, master_weights = False, True, False
    constant = torch.float32

    def __init__(self, params):
        super().__init__(
            params, {"lr": LR, "betas": BETAS, "eps": EPS, "weight_decay": DECAY, "bias_correction": True}
        )
        self.param_groups_master = [{"params": [None for _ in one["params"]]} for one in self.param_groups]

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            beta1, beta2 = (torch.tensor(beta, dtype=self.constant) for beta in group["betas"])
            for p in group["params"]:
                state, g = self.state[p], p.grad
                if not state:
                    state.update(exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                m, v = state["exp_avg"], state["exp_avg_sq"]
                m.copy_(float(beta1) * m + float(1 - beta1) * g)
                v.copy_(float(beta2) * v + float(1 - beta2) * g * g)
                correction1 = 1 - group["betas"][0] ** group["step"]
                correction2 = 1 - group["betas"][1] ** group["step"]
                update = (m / correction1) / ((v / correction2).sqrt() + EPS) + DECAY * p
                p -= LR * update


class Float64Constants(FusedAdam):
    """The same with the constants of torch's optimizers."""

    constant = torch.float64


apex, optimizers = ModuleType("apex"), ModuleType("apex.optimizers")
optimizers.FusedAdam = FusedAdam
sys.modules.update({"apex": apex, "apex.optimizers": optimizers})
folder = Path(find_spec("megatron.core").origin).parent
spec = importlib.util.spec_from_file_location("helper", folder / "optimizer" / "zbpp_optimizer_helper.py")
helper = importlib.util.module_from_spec(spec)
spec.loader.exec_module(helper)


def train(optimizer_class, *, rolls_back):
    torch.manual_seed(0)
    embedding = torch.nn.Parameter(torch.randn(ROWS, WIDTH))
    optimizer = optimizer_class([embedding])

    def gradient(*seen):
        embedding.grad = torch.zeros_like(embedding)
        for rows in seen:
            embedding.grad[rows] = 1e-2 * torch.randn(100, WIDTH)

    for _ in range(SEEN_BEFORE):
        gradient(SEEN)
        optimizer.step()
    before = embedding.detach().clone()
    gradient(SEEN, NEW)  # a later stage has an overflow in this step
    if rolls_back:
        optimizer.step()
        helper.rollback_optimizer_step(optimizer)
    moved = float((embedding.detach() - before).abs().max())
    second = optimizer.state[embedding]["exp_avg_sq"]
    print(f"  before the next step: parameters moved by less than 1e-5: {moved < 1e-5}; ", end="")
    print(f"second moments below 0: {float((second[NEW] < 0).float().mean()):.2f} of those in new rows")
    gradient(SEEN)
    optimizer.step()
    nan = float(embedding[NEW].isnan().float().mean())
    others = float(embedding[SEEN].isnan().float().mean())
    print(f"  after it: NaN are {nan:.2f} of the new rows, {others:.2f} of the others")


def main():
    print("a step is left out")
    train(FusedAdam, rolls_back=False)
    print("a step is taken back, constants in float32 as in apex")
    train(FusedAdam, rolls_back=True)
    print("a step is taken back, constants in float64")
    train(Float64Constants, rolls_back=True)


if __name__ == "__main__":
    main()
