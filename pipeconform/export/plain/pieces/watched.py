# ruff: noqa
# mypy: ignore-errors
"""What is counted, and what is kept alive."""

import gc
import weakref


def counts(stages):
    """How often each hook of a stage ran."""
    found = {}
    for s, stage in stages.items():
        for part in stage.modules():
            for kind, count in getattr(part, "fires", {}).items():
                found[f"{kind} of stage {s}"] = found.get(f"{kind} of stage {s}", 0) + count
    return found


def miscounted(expected, found, owned):
    """The hooks of this rank's stages that ran MORE often than on the full model."""
    for step, (right, mine) in enumerate(zip(expected, found)):
        for name, count in right.items():
            if int(name.split()[-1]) in owned and mine.get(name, 0) > count:
                yield f"until the end of step {step}, {name} ran {mine.get(name, 0)} times, expected {count}"


def received(stages):
    """Weak references to what stages after the first receive, and to what stages return, by forward."""
    inputs, outputs = [], []
    for s, stage in stages.items():

        def ended(module, args, output, s=s):
            outputs.append([weakref.ref(one) for one in (output if isinstance(output, tuple) else (output,))])
            if s:
                inputs.append([weakref.ref(one) for one in args])

        stage.register_forward_hook(ended)
    return inputs, outputs


def alive(references):
    """Of how many forwards any tensor is alive."""
    gc.collect()
    return sum(any(one() is not None for one in forward) for forward in references)


def undeclared(order):
    """Forwards that the declared order of every rank lacks, or has although there is no such microbatch."""
    for rank, actions in order.items():
        declared = {}
        for action in actions:
            if action is not None and action.computation_type.name == "FORWARD":
                declared.setdefault(action.stage_index, []).append(action.microbatch_index)
        for s, several in declared.items():
            if sorted(several) != list(range(M)):
                yield f"rank {rank} declares the forwards {several} of stage {s}, expected {list(range(M))}"
