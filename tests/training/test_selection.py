"""Selection: what is trained, and that it is trained once."""

from uuid import UUID

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.training.trees import node, two_turns
from training.selection import ROLE_ORDER, TRAINED_ROLES, select_samples

ROLLOUT = UUID(int=7)


def select(nodes, *, max_samples=5, purpose="policy", rollout_id=ROLLOUT):
    return select_samples(nodes, rollout_id=rollout_id, max_samples=max_samples, purpose=purpose)


def test_a_straight_conversation_is_one_sample_and_openers_are_context():
    (sample,) = select(two_turns()).samples
    assert sample.ids.tolist() == [1, 2, 3, 50, 51, 10, 11, 4, 5, 50, 51, 12, 13, 14]
    assert np.flatnonzero(sample.loss_mask).tolist() == [5, 6, 11, 12, 13]
    assert np.allclose(sample.behaviour_logprobs[sample.loss_mask], [-0.1, -0.2, -0.1, -0.2, -0.3])
    assert np.isnan(sample.behaviour_logprobs[~sample.loss_mask]).all()


def test_tokens_after_the_last_answer_are_not_carried_along():
    nodes = [*two_turns(), node(4, 3, [6] * 100)]
    assert select(nodes).samples[0].num_tokens == 14


def test_a_shared_answer_is_trained_in_the_first_sample_and_context_in_the_second():
    nodes = [*two_turns(), node(4, 1, [7]), node(5, 4, [50, 51, 15], sampled=True, opener=2)]
    first, second = select(nodes).samples
    assert first.num_trained + second.num_trained == 2 + 3 + 1
    assert not second.loss_mask[5:7].any()


def test_main_goes_before_its_summary_and_sub_agents_and_side_is_never_trained():
    nodes = [
        node(0, None, [1]),
        node(1, 0, [2], sampled=True),
        node(2, 1, [3], sampled=True, role="main-summary"),
        node(3, None, [4]),
        node(4, 3, [5] * 50, sampled=True, role="sub-agent"),
        node(5, 3, [6] * 50, sampled=True, role="side"),
    ]
    ends = [sample.pieces[-1].node for sample in select(nodes).samples]
    assert ends == [1, 2, 4]


def test_no_more_than_max_samples_and_the_rest_is_counted():
    nodes = [node(0, None, [1])] + [node(index, 0, [2, 3], sampled=True) for index in range(1, 8)]
    selection = select(nodes, max_samples=5)
    assert len(selection.samples) == 5
    assert selection.num_left == 4


def test_a_branch_with_ten_times_the_tokens_is_drawn_first_about_ten_times_as_often():
    nodes = [node(0, None, [1]), node(1, 0, [2] * 10, sampled=True), node(2, 0, [3] * 100, sampled=True)]
    firsts = [
        select(nodes, max_samples=1, rollout_id=UUID(int=seed)).samples[0].pieces[-1].node for seed in range(1000)
    ]
    assert 870 <= firsts.count(2) <= 945


def test_demonstrations_are_context_for_a_policy_loss_and_trained_by_a_supervised_one():
    nodes = [node(0, None, [1]), node(1, 0, [2, 3], sampled=True, logprobs=False)]
    assert select(nodes).samples == ()
    assert select(nodes).num_without_logprobs == 2
    assert select(nodes, purpose="supervised").samples[0].num_trained == 2


def test_an_aborted_answer_is_context():
    nodes = [node(0, None, [1]), node(1, 0, [2, 3], sampled=True, trainable=False), node(2, 1, [4], sampled=True)]
    (sample,) = select(nodes).samples
    assert np.flatnonzero(sample.loss_mask).tolist() == [3]


@st.composite
def trees(draw):
    nodes = []
    for index in range(draw(st.integers(1, 14))):
        parent = draw(st.one_of(st.none(), st.integers(0, index - 1))) if index else None
        sampled = draw(st.booleans()) and parent is not None
        size = draw(st.integers(1, 5))
        opener = draw(st.integers(0, size)) if sampled else 0
        role = draw(st.sampled_from((*ROLE_ORDER, "side")))
        nodes.append(
            node(
                index, parent, [index * 10 + place for place in range(size)], sampled=sampled, role=role, opener=opener
            )
        )
    return nodes


@given(trees(), st.uuids())
def test_any_tree_every_trainable_token_is_trained_exactly_once_and_the_same_each_time(nodes, rollout_id):
    selection = select(nodes, max_samples=100, rollout_id=rollout_id)
    again = select(nodes, max_samples=100, rollout_id=rollout_id)
    trained = [int(token) for sample in selection.samples for token in sample.ids[sample.loss_mask]]
    expected = [
        int(token)
        for record in nodes
        if record.sampled and record.branch_role != "side"
        for token in record.ids[record.opener_length :]
    ]
    assert sorted(trained) == sorted(expected)
    assert selection.num_left == 0
    assert [sample.ids.tolist() for sample in selection.samples] == [sample.ids.tolist() for sample in again.samples]
    by_index = {record.index: record for record in nodes}
    for sample in selection.samples:
        for before, after in zip(sample.pieces, sample.pieces[1:], strict=False):
            assert by_index[after.node].parent == before.node


def test_ablations_one_sample_only_or_all_of_them():
    nodes = [node(0, None, [1])] + [node(index, 0, [2, 3], sampled=True) for index in range(1, 8)]
    assert [len(select(nodes, max_samples=most).samples) for most in (1, 5, 0)] == [1, 5, 7]
    assert select(nodes, max_samples=1).num_left == 12


def test_roles_that_are_not_trained_are_context_and_not_left():
    nodes = [
        node(0, None, [1]),
        node(1, 0, [2] * 3, sampled=True),
        node(2, 1, [3] * 3, sampled=True, role="main-summary"),
        node(3, 0, [4] * 3, sampled=True, role="sub-agent"),
    ]
    found = {
        name: select_samples(nodes, rollout_id=ROLLOUT, max_samples=5, roles=roles)
        for name, roles in TRAINED_ROLES.items()
    }
    trained = {name: sum(sample.num_trained for sample in each.samples) for name, each in found.items()}
    assert trained == {"main": 3, "with-summaries": 6, "all": 9}
    assert {each.num_left for each in found.values()} == {0}
