"""A decoder layer computes what its parts say, written differently; positions and masks do what they are for."""

import pytest
import torch

from pipeconform.case import blocks
from pipeconform.case.build.data import make_batch
from pipeconform.case.build.decoder import EARLIER, DecoderLayer
from pipeconform.case.case import Kwarg, Stage
from tests.case.examples import small_case, with_model

LENGTH = 5


@pytest.fixture(params=[1, 2])
def layer(request):
    torch.manual_seed(0)
    return DecoderLayer(3, kv_heads=request.param, sequence=LENGTH, sequence_dim=1).double()


def drawn(batch=2):
    return torch.randn(batch, LENGTH, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def written_out(layer, x, positions, allowed):
    """Token by token and head by head, with rotations as products of complex numbers."""

    def normed(x, norm):
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight

    def head_of(linear, y, head, position=None):
        values = (linear.weight @ y)[4 * head : 4 * head + 4]
        if position is None:
            return values
        angles = position * 100.0 ** -torch.tensor([0.0, 0.5], dtype=torch.float64)
        turned = torch.complex(values[:2], values[2:]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([turned.real, turned.imag])

    shared = 4 // (layer.key.weight.shape[0] // 4)
    found = x.clone()
    for b in range(len(x)):
        y = normed(x[b], layer.attention_norm)
        for i in range(LENGTH):
            seen = [j for j in range(i + 1) if allowed(b, i, j)]
            heads = []
            for h in range(4):
                query = head_of(layer.query, y[i], h, positions[b, i])
                keys = torch.stack([head_of(layer.key, y[j], h // shared, positions[b, j]) for j in seen])
                values = torch.stack([head_of(layer.value, y[j], h // shared) for j in seen])
                heads.append((keys @ query / 2).softmax(0) @ values)
            found[b, i] = x[b, i] + layer.out.weight @ torch.cat(heads)
    y = normed(found, layer.map_norm)
    gate = y @ layer.gate.weight.T
    return found + (gate * gate.sigmoid() * (y @ layer.up.weight.T)) @ layer.down.weight.T


def test_it_computes_what_it_says(layer) -> None:
    x, places = drawn(), torch.arange(LENGTH).expand(2, -1)

    torch.testing.assert_close(layer(x), written_out(layer, x, places, lambda b, i, j: True))
    torch.testing.assert_close(layer(x, positions=places), layer(x))
    torch.testing.assert_close(layer(x, mask=torch.ones(2, LENGTH, dtype=torch.bool)), layer(x))


def test_tokens_attend_to_their_own_document(layer) -> None:
    positions = torch.tensor([[6, 7, 0, 1, 2], [0, 0, 1, 0, 1]])
    documents = [[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]]
    right = written_out(layer, drawn(), positions, lambda b, i, j: documents[b][i] == documents[b][j])

    torch.testing.assert_close(layer(drawn(), positions=positions), right)


def test_nothing_attends_to_what_is_masked_but_the_token_itself(layer) -> None:
    mask = torch.tensor([[1, 0, 1, 0, 1], [0, 0, 1, 1, 0]]).bool()
    places = torch.arange(LENGTH).expand(2, -1)
    right = written_out(layer, drawn(), places, lambda b, i, j: i == j or bool(mask[b, j]))

    torch.testing.assert_close(layer(drawn(), mask=mask), right)


def test_the_batch_may_be_in_the_second_dimension(layer) -> None:
    positions = torch.tensor([[6, 7, 0, 1, 2], [0, 0, 1, 0, 1]])
    right = layer(drawn(), positions=positions)
    layer.sequence_dim = 0

    found = layer(drawn().transpose(0, 1), positions=positions.T)

    torch.testing.assert_close(found.transpose(0, 1), right)


def test_the_table_is_no_part_of_the_state(layer) -> None:
    assert "rotations" in dict(layer.named_buffers())
    assert "rotations" not in layer.state_dict()


@pytest.mark.parametrize("batch_dim", [0, 1])
def test_positions_follow_each_other_and_masks_hide_some_tokens(batch_dim) -> None:
    stage = Stage(blocks=(blocks.Decoder(),))
    case = with_model(
        small_case(),
        stages=(stage, stage),
        sequence=16,
        batch_dim=batch_dim,
        kwargs=(
            Kwarg(stage=0, kind="positions"),
            Kwarg(stage=1, kind="positions"),
            Kwarg(stage=1, kind="mask"),
        ),
    )
    batch = make_batch(case, 0)
    one, other = (batch.kwargs[s][f"positions_{s}"].movedim(batch_dim, 0) for s in (0, 1))
    mask = batch.kwargs[1]["mask_1"]

    steps = one[:, 1:] - one[:, :-1]
    assert not torch.equal(one, other)
    assert bool(((one[:, 1:] == 0) | (steps == 1)).all())
    assert bool((one[:, 1:] == 0).any())
    assert int(one[:, 0].max()) < EARLIER
    assert mask.dtype == torch.bool
    assert mask.any()
    assert not mask.all()
    assert [micro.kwargs[1]["mask_1"].shape[batch_dim] for micro in batch.microbatches] == [
        micro.target.shape[batch_dim] for micro in batch.microbatches
    ]
