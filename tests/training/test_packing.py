"""Packing: nothing lost, nothing mixed; chunked logprobs equal the plain formula."""

from uuid import UUID

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from training import logprobs as chunked
from training.attention import Rows, flex, single_runs, tree_attention
from training.packing import build_micro_batches
from training.selection import Piece, Sample


def sample(number, length, trained):
    """Ids are number * 1000 + place; the last `trained` tokens are trained."""
    mask = np.zeros(length, dtype=np.bool_)
    mask[length - trained :] = True
    return Sample(
        rollout_id=UUID(int=number),
        pieces=(Piece(node=0, start=0, stop=length, opener_length=0),),
        ids=np.arange(length) + number * 1000,
        loss_mask=mask,
        behaviour_logprobs=np.where(mask, -0.5, np.nan).astype(np.float32),
    )


SAMPLES = [sample(number, length, 3) for number, length in enumerate([40, 90, 10, 200, 60, 33])]


@pytest.mark.parametrize("packing", ["tree", "flat"])
def test_every_trained_token_is_in_exactly_one_micro_batch_and_predicted_from_the_token_before(packing):
    batches = build_micro_batches(SAMPLES, budget_tokens=128, packing=packing)
    targets = torch.cat([batch.targets_M for batch in batches]).tolist()
    assert sorted(targets) == sorted(int(token) for each in SAMPLES for token in each.ids[each.loss_mask])
    for batch in batches:
        assert (batch.ids_T[batch.predict_M] == batch.targets_M - 1).all()
        assert (batch.targets_M // 1000 == batch.sample_M).all()


def test_a_micro_batch_keeps_to_the_budget_unless_one_sample_is_longer():
    for batch in build_micro_batches(SAMPLES, budget_tokens=128):
        assert batch.num_tokens <= 128 or len(batch.lengths) - (batch.num_padding > 0) == 1
        assert len(batch.ids_T) % 2 == 0  # a 64th of the budget


def test_positions_begin_again_with_each_sample():
    (batch,) = build_micro_batches(SAMPLES[:2], budget_tokens=256, packing="flat")
    assert batch.positions_T.tolist()[:130] == [*range(90), *range(40)]


def test_a_sample_with_nothing_to_train_is_left_out():
    assert build_micro_batches([sample(0, 20, 0)], budget_tokens=64) == []


def branch(*parts):
    """A sample of these parts, the last of which is trained. Equal parts are equal ids."""
    ids = np.concatenate([np.arange(1, length + 1) + 100 * name for name, length in parts])
    mask = np.arange(len(ids)) >= len(ids) - parts[-1][1]
    logprobs = np.where(mask, -0.5, np.nan).astype(np.float32)
    piece = Piece(node=0, start=0, stop=len(ids), opener_length=0)
    return Sample(rollout_id=UUID(int=0), pieces=(piece,), ids=ids, loss_mask=mask, behaviour_logprobs=logprobs)


TREE = [branch((1, 50), (2, 10)), branch((1, 50), (3, 20)), branch((1, 50), (3, 20), (4, 5)), branch((5, 30), (6, 8))]


def test_every_distinct_token_is_computed_once_where_the_tree_fits():
    (batch,) = build_micro_batches(TREE, budget_tokens=512)
    assert batch.num_tokens == 50 + 10 + 20 + 5 + 30 + 8
    assert batch.flat_tokens == 60 + 70 + 75 + 38


def test_a_tree_larger_than_the_budget_is_cut_where_least_is_computed_twice():
    batches = build_micro_batches(TREE, budget_tokens=86)
    assert [batch.num_tokens for batch in batches] == [85, 38]
    batches = build_micro_batches(TREE, budget_tokens=75)
    assert sum(batch.num_tokens for batch in batches) == 60 + 75 + 38  # the trunk of 50 twice


def test_two_samples_may_be_trained_from_one_token():
    (batch,) = build_micro_batches(TREE[:2], budget_tokens=512)
    first = batch.predict_M[batch.sample_M == 0][0], batch.predict_M[batch.sample_M == 1][0]
    assert first[0] == first[1] == 49


def attend(query, key, value, rows):
    found, _ = tree_attention(None, query, key, value, None, None, rows=rows)
    return found


def test_attention_does_not_look_across_segments():
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, 12, 8), torch.randn(1, 2, 12, 8), torch.randn(1, 2, 12, 8)
    found = attend(query, key, value, Rows(runs=single_runs([5, 4]), looks=()))
    for part in (slice(0, 5), slice(5, 9)):
        expected = scaled_dot_product_attention(
            query[:, :, part], key[:, :, part], value[:, :, part], is_causal=True, enable_gqa=True
        )
        assert torch.allclose(found[:, part], expected.transpose(1, 2), atol=1e-6)
    assert (found[:, 9:] == 0).all()


def test_tree_attention_and_its_gradients_equal_a_dense_mask_in_float64():
    (batch,) = build_micro_batches(TREE, budget_tokens=512)
    size = len(batch.ids_T)
    torch.manual_seed(0)
    made = [torch.randn(1, heads, size, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    upstream = torch.randn(1, size, 4, 8, dtype=torch.float64)
    ends = torch.zeros(size, dtype=torch.int64)
    ends[: len(batch.rows.ends_T)] = batch.rows.ends_T
    place = torch.arange(size)
    mask = (place[None] <= place[:, None]) & (place[:, None] < ends[None])
    upstream[:, ~mask.any(1)] = 0
    expected = scaled_dot_product_attention(*made, attn_mask=mask | ~mask.any(1)[:, None], enable_gqa=True).transpose(
        1, 2
    )
    wanted = torch.autograd.grad((expected * upstream).sum(), made)
    output = attend(*made, batch.rows)
    found = torch.autograd.grad((output * upstream).sum(), made)
    assert torch.allclose(output[:, mask.any(1)], expected[:, mask.any(1)], atol=1e-6)
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_the_block_mask_of_the_cuda_path_gives_the_same_attention():
    """Forward, uncompiled, on CPU: FlexAttention has no backward there."""
    (batch,) = build_micro_batches(TREE, budget_tokens=512)
    size, real = len(batch.ids_T), batch.num_tokens
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, size, 16) for heads in (4, 2, 2))
    found = flex(query, key, value, batch.rows, 16**-0.5).transpose(1, 2)
    assert torch.allclose(found[:, :real], attend(query, key, value, batch.rows)[:, :real], atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunked_logprobs_entropies_and_gradients_equal_the_plain_formula(temperature, monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK_TOKENS", 4)
    torch.manual_seed(0)
    hidden, weight = torch.randn(11, 6, dtype=torch.float32), torch.randn(37, 6)
    targets, upstream, upstream_entropy = torch.randint(0, 37, (11,)), torch.randn(11), torch.randn(11)

    def gradients(compute):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        logprobs, entropies = compute(h, w)
        (logprobs @ upstream + entropies @ upstream_entropy).backward()
        return logprobs, entropies, h.grad, w.grad

    def plain(h, w):
        log_p = torch.log_softmax(h @ w.T / temperature, dim=-1)
        return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)

    found = gradients(lambda h, w: chunked.token_logprobs(h, w, targets, temperature=temperature))
    for one, other in zip(found, gradients(plain), strict=True):
        assert torch.allclose(one, other, atol=2e-5)


def test_chunked_logprobs_alone_have_the_right_gradient():
    torch.manual_seed(0)
    hidden = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 9, (5,))
    weight = torch.randn(9, 6, dtype=torch.float64)
    chunked.token_logprobs(hidden, weight, targets, temperature=1.0)[0].sum().backward()
    plain = hidden.detach().clone().requires_grad_()
    torch.log_softmax(plain @ weight.T, -1).gather(1, targets[:, None]).sum().backward()
    assert torch.allclose(hidden.grad, plain.grad, atol=1e-5)
