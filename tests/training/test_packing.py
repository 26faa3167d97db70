"""Packing: nothing lost, nothing mixed; chunked logprobs equal the plain formula."""

from uuid import UUID

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from training import logprobs as chunked
from training.packing import build_micro_batches, segment_attention
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


def test_every_trained_token_is_in_exactly_one_micro_batch_and_predicted_from_the_token_before():
    batches = build_micro_batches(SAMPLES, budget_tokens=128)
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
    (batch,) = build_micro_batches(SAMPLES[:2], budget_tokens=256)
    assert batch.positions_T.tolist()[:130] == [*range(90), *range(40)]


def test_a_sample_with_nothing_to_train_is_left_out():
    assert build_micro_batches([sample(0, 20, 0)], budget_tokens=64) == []


def test_attention_does_not_look_across_segments():
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, 12, 8), torch.randn(1, 2, 12, 8), torch.randn(1, 2, 12, 8)
    found, _ = segment_attention(None, query, key, value, None, None, segment_lengths=(5, 4, 3), num_padding=3)
    for part in (slice(0, 5), slice(5, 9)):
        expected = scaled_dot_product_attention(
            query[:, :, part], key[:, :, part], value[:, :, part], is_causal=True, enable_gqa=True
        )
        assert torch.allclose(found[:, part], expected.transpose(1, 2), atol=1e-6)
    assert (found[:, 9:] == 0).all()


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
