"""A random Llama of a few thousand parameters, and samples for it."""

from uuid import UUID

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from training.config import Optimization
from training.selection import Piece, Sample
from training.trainer import TrainRollout

VOCABULARY = 64
SETTINGS = Optimization(micro_batch_tokens=64, precision="fp32", learning_rate=1e-3)


def save_tiny_model(path, *, seed=0, tied=True):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def make_sample(seed, *, length=20, trained=8, rollout=None):
    source = np.random.default_rng(seed)
    mask = np.zeros(length, dtype=np.bool_)
    mask[length - trained :] = True
    logprobs = np.where(mask, source.normal(-4, 0.3, length), np.nan).astype(np.float32)
    return Sample(
        rollout_id=UUID(int=seed if rollout is None else rollout),
        pieces=(Piece(node=0, start=0, stop=length, opener_length=0),),
        ids=source.integers(1, VOCABULARY, length),
        loss_mask=mask,
        behaviour_logprobs=logprobs,
    )


def make_rollouts():
    """Six of unlike lengths, one with two samples, one without signal."""
    lengths = [12, 30, 18, 25, 40, 16]
    advantages = [1.0, -1.0, 0.5, -0.5, 0.0, 2.0]
    rollouts = [
        TrainRollout(samples=(make_sample(seed, length=length),), advantage=advantage)
        for seed, (length, advantage) in enumerate(zip(lengths, advantages, strict=True))
    ]
    second = make_sample(99, length=22, trained=3, rollout=0)
    return [TrainRollout(samples=(*rollouts[0].samples, second), advantage=1.0), *rollouts[1:]]
