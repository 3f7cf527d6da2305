# ruff: noqa
# mypy: ignore-errors
"""Steps in which the user calls the stages' operations, in the way of torch's own schedules."""

import re

import torch.distributed as dist


def operations(own):
    """What a step does on one rank: all forwards, stage by stage, then all backwards."""
    for s in own:
        for k in range(M):
            yield from [("recv_fwd", s, k)] * (s > 0 and s - 1 not in own)
            yield "forward", s, k
            yield from [("send_fwd", s, k)] * (s < LAST and s + 1 not in own)
    for s in reversed(own):
        for k in range(M):
            yield from [("recv_bwd", s, k)] * (s < LAST and s + 1 not in own)
            yield PART, s, k
            yield from [("send_bwd", s, k)] * (s > 0 and s - 1 not in own)
            yield from [("weight", s, k)] * (PART == "input")
    for s in own:
        yield "finish", s, 0


def call(own, what, s, k, parts, kept):
    """One operation of a stage; `kept` has losses, and sends that were not waited for yet."""
    stage = own[s]
    if what == "forward":
        output = stage.forward_one_chunk(k, parts[k][:-1] if s == 0 and k < M else (), {})
        if s == LAST:
            kept[k] = loss(output, parts[k][-1])
        elif s + 1 in own:
            own[s + 1].set_local_fwd_input(output, k)
    elif what in ("backward", "input"):
        value = kept.pop(k, None) if s == LAST else None
        stage.backward_one_chunk(k, loss=value, full_backward=what == "backward")
        if s - 1 in own:
            own[s - 1].set_local_bwd_input(stage.get_local_bwd_output(k), k)
    elif what == "weight":
        stage.backward_weight_one_chunk(k)
    elif what == "finish":
        for work in kept.pop(("sent", s), []):
            work.wait()
        stage.perform_reduce_grad(M)
        stage.clear_runtime_states()
    else:
        side, way = what.split("_")
        found = getattr(stage, f"get_{way}_{side}_ops")(k)
        for work in dist.batch_isend_irecv(found) if found else ():
            kept.setdefault(("sent", s), []).append(work) if side == "send" else work.wait()


def names_microbatch(error, k):
    """Whether an error, or one of its causes, says which microbatch it is about."""
    text = f"{error}\n{error.__cause__ or ''}\n{error.__cause__ and error.__cause__.__cause__ or ''}"
    return re.search(rf"(?<![\w.-]){k}(?![\w.])", text) and re.search("chunk|micro-?\\s?batch", text, re.I)


def refused(own, what, s, k, parts, kept):
    """The error that a call which is not due raises; None if it is carried out."""
    try:
        call(own, what, s, k, parts, kept)
    except Exception as error:
        return error
    return None
