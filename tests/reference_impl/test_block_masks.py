"""Block masks are split with the batch, their tables and their rule."""

import pytest
import torch
from pipeconform.reference_impl.block_masks import split_block_mask
from torch.nn.attention.flex_attention import create_block_mask

DOCUMENTS = torch.tensor([[0, 0, 1], [0, 1, 1], [0, 0, 0]])


def same_document(b, h, q, k):
    return (q >= k) & (DOCUMENTS[b, q] == DOCUMENTS[b, k])


def mask_of(samples):
    return create_block_mask(same_document, B=samples, H=None, Q_LEN=3, KV_LEN=3, device="cpu", BLOCK_SIZE=1)


def test_every_part_has_the_blocks_and_the_rule_of_its_samples():
    first, second = split_block_mask(mask_of(3), sizes=(2, 1))
    zero = torch.tensor(0)

    assert [part.kv_num_blocks.shape[0] for part in (first, second)] == [2, 1]
    assert torch.equal(torch.cat([first.to_dense(), second.to_dense()]), mask_of(3).to_dense())
    for sample, part in ((0, first), (2, second)):
        for i in range(3):
            for j in range(3):
                token, other = torch.tensor(i), torch.tensor(j)
                found = part.mask_mod(zero, zero, token, other)
                assert found == same_document(sample, 0, token, other)


def test_one_row_is_for_all_samples():
    mask = mask_of(None)

    assert split_block_mask(mask, sizes=(2, 1)) == [mask, mask]


def test_another_number_of_samples_is_refused():
    with pytest.raises(ValueError, match="a block mask is for 3 samples; the batch has 4"):
        split_block_mask(mask_of(3), sizes=(2, 2))
