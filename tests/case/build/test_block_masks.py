"""Block masks are those that torch makes, are cut with the batch, and allow what they say."""

import pytest
import torch
from torch.distributed.pipelining import microbatch
from torch.nn.attention.flex_attention import create_block_mask

from pipeconform.case import blocks
from pipeconform.case.build import block_masks, data
from pipeconform.case.build.modules import build_stage
from pipeconform.case.case import Kwarg, Stage
from tests.case.examples import small_case, with_model

DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 1, 2], [0, 0, 0, 2, 3]])
TABLES = [f"{kind}_{what}" for kind in ("kv", "q", "full_kv", "full_q") for what in ("num_blocks", "indices")]


def of_documents():
    return block_masks.block_mask_of(DOCUMENTS)


def seen(mask, samples):
    return block_masks.allowed_by(mask, samples=samples, sequence=5)[:, 0]


def by_hand():
    """What is not later and in the same document."""
    found = torch.zeros(3, 5, 5, dtype=torch.bool)
    for b in range(3):
        for i in range(5):
            for j in range(i + 1):
                found[b, i, j] = DOCUMENTS[b, i] == DOCUMENTS[b, j]
    return found


@pytest.mark.parametrize("samples", [3, None])
def test_its_tables_are_those_that_torch_makes(samples):
    mask = of_documents() if samples else block_masks.window(2, sequence=5, device="cpu")
    made = create_block_mask(mask.mask_mod, B=samples, H=None, Q_LEN=5, KV_LEN=5, device="cpu", BLOCK_SIZE=2)

    for name in TABLES:
        assert torch.equal(getattr(mask, name), getattr(made, name)), name
    assert (mask.shape, mask.seq_lengths, mask.BLOCK_SIZE) == (made.shape, made.seq_lengths, made.BLOCK_SIZE)


def test_it_has_full_and_partial_and_empty_blocks():
    mask = of_documents()

    assert mask.kv_num_blocks.any()
    assert (
        mask.full_kv_num_blocks.any()
        or block_masks.window(4, sequence=5, device="cpu").full_kv_num_blocks.any()
    )
    assert int((mask.kv_num_blocks + mask.full_kv_num_blocks).sum()) < mask.to_dense().numel()


def test_tokens_see_what_is_not_later_in_their_document():
    assert torch.equal(seen(of_documents(), 3), by_hand())


def test_a_window_lets_every_sample_see_the_same():
    allowed = seen(block_masks.window(1, sequence=5, device="cpu"), 3)

    assert allowed[0].int().tolist() == [[int(0 <= i - j <= 1) for j in range(5)] for i in range(5)]


def test_a_block_that_is_in_no_table_is_not_seen_whatever_the_rule_says():
    mask = of_documents()
    mask.kv_num_blocks = torch.zeros_like(mask.kv_num_blocks)

    assert not seen(mask, 3)[:, 0, 0].any()


@pytest.mark.parametrize("num_microbatches", [1, 2, 3])
def test_a_microbatch_has_the_rows_and_the_rule_of_its_samples(num_microbatches):
    parts = block_masks.cut(of_documents(), num_microbatches)
    torchs = microbatch._split_block_mask(of_documents(), num_microbatches)

    right = by_hand().tensor_split(num_microbatches)
    for part, other, expected in zip(parts, torchs, right, strict=True):
        assert torch.equal(seen(part, len(expected)), expected)
        assert torch.equal(seen(other, len(expected)), expected)


def test_one_of_all_samples_is_given_to_every_microbatch():
    mask = block_masks.window(1, sequence=5, device="cpu")

    assert block_masks.cut(mask, 2) == [mask, mask]


def test_nothing_else_is_one():
    assert block_masks.is_block_mask(of_documents())
    assert not any(map(block_masks.is_block_mask, (DOCUMENTS, None, type("BlockMask", (), {})())))


@pytest.mark.parametrize("kind", ["block_mask", "window"])
def test_a_stage_computes_with_the_mask_of_the_microbatch(kind):
    """On the whole batch and on its microbatches, and another mask gives other values."""
    stages = (Stage(blocks=(blocks.Decoder(),)),) * 2
    case = with_model(small_case(), stages=stages, sequence=5, kwargs=(Kwarg(stage=0, kind=kind),))
    batch, module = data.make_batch(case, 0), build_stage(case, 0)
    name = f"{kind}_0"

    whole = module(*batch.args, **{name: batch.kwargs[0][name]})
    parts = [module(*micro.args, **micro.kwargs[0]) for micro in batch.microbatches]
    other = module(*batch.args, **{name: block_masks.window(0, sequence=5, device="cpu")})

    torch.testing.assert_close(torch.cat(parts), whole)
    assert not torch.allclose(other, whole)
