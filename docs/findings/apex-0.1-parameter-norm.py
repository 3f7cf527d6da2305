"""calc_params_l2_norm raises for every model; and it would count the shared parameters only.

What: `calc_params_l2_norm` is to give the norm of a model's parameters. It raises AttributeError for any model that has
  one. Beside that, `param_is_not_shared` says True of parameters that are shared, and False of all others.
Where: NVIDIA/apex at tag 25.09 (August 2025, the last release that has apex.transformer; 0.1 in its setup.py),
  apex/transformer/pipeline_parallel/utils.py, calc_params_l2_norm (line 223) and param_is_not_shared (line 182).
Why: it asks parallel_state for param_is_not_tensor_parallel_duplicate, which is in tensor_parallel.layers.
  param_is_not_shared returns the mark `shared` itself, where Megatron-LM returns its contrary.
Why it is one: the names, and the docstring "Calculate l2 norm of parameters".
Requirement: none (the adapter calls neither; near TRN-17).
Schedules: none.
Known: no thread about this is known.
Possible fix: ask tensor_parallel.layers, and return `not getattr(param, "shared", False)`.

The kernel that adds up squares is for CUDA, and stands written out in torch here.
"""

import sys
import warnings

if not sys.warnoptions:
    warnings.simplefilter("ignore")

import torch
import torch.distributed as dist
from apex.transformer import parallel_state
from apex.transformer.pipeline_parallel import utils
from apex.transformer.tensor_parallel.layers import param_is_not_tensor_parallel_duplicate
from torch import nn


def multi_tensor_applier(kernel, overflow, tensors, per_parameter):
    (parameters,) = tensors
    print(f"  parameters that count: {len(parameters)}")
    return sum((one.square().sum() for one in parameters), torch.zeros(1)).sqrt(), None


def norm(model):
    try:
        return f"norm {utils.calc_params_l2_norm(model, bf16=False):.2f}"
    except AttributeError as error:
        return f"AttributeError: {error}"


def main():
    torch.cuda.IntTensor = torch.IntTensor
    utils.multi_tensor_applier, utils.amp_C = multi_tensor_applier, nn.Module()
    utils.amp_C.multi_tensor_l2norm = None
    parallel_state.new_process_group = lambda ranks, backend: dist.new_group(ranks)
    parallel_state.get_tensor_model_parallel_rank = lambda: 0
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()

    model = nn.Linear(4, 4)
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    print(f"20 parameters of 1, norm {20**0.5:.2f}")
    print(f"as it is: {norm(model)}")

    parallel_state.param_is_not_tensor_parallel_duplicate = param_is_not_tensor_parallel_duplicate
    print(f"with that function: {norm(model)}")

    print(
        f"param_is_not_shared of a parameter that nothing shares: {utils.param_is_not_shared(model.weight)}"
    )
    model.weight.shared = True
    print(f"param_is_not_shared of one that is marked as shared: {utils.param_is_not_shared(model.weight)}")

    utils.param_is_not_shared = lambda parameter: not getattr(parameter, "shared", False)
    model.weight.shared = False
    print(f"with both: {norm(model)}")


if __name__ == "__main__":
    main()
