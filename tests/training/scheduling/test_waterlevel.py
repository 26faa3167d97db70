"""Cells turn by the water level: worked by hand for one, two and three cells."""

from hypothesis import given
from hypothesis import strategies as st

from training.scheduling.waterlevel import CellView, Situation, build_orders


def situation(roles: str, **changes) -> Situation:
    """roles: one letter a cell, s serves, t trains, T serving and told to train."""
    pairs = {"s": ("serves", "serves"), "t": ("trains", "trains"), "T": ("serves", "trains"), "S": ("trains", "serves")}
    cells = [
        CellView(index=index, role=pairs[letter][0], wanted=pairs[letter][1], capacity=8)
        for index, letter in enumerate(roles)
    ]
    state = {
        "mode": "elastic",
        "cells": cells,
        "unfinished": 0,
        "ready_groups": 0,
        "groups_per_step": 4,
        "steps_left_in_burst": 1,
        "step_going_on": False,
        "must_publish": False,
    }
    return Situation(**{**state, **changes})


def test_nobody_turns_without_a_batch():
    assert build_orders(situation("sss", ready_groups=3)) == {}


def test_the_core_turns_first_when_the_rest_carries_what_is_unfinished():
    assert build_orders(situation("sss", ready_groups=4, unfinished=17)) == {}
    assert build_orders(situation("sss", ready_groups=4, unfinished=16)) == {0: "trains"}


def test_satellites_join_a_step_in_order_as_the_water_falls():
    assert build_orders(situation("tss", step_going_on=True, unfinished=9)) == {}
    assert build_orders(situation("tss", step_going_on=True, unfinished=8)) == {1: "trains"}
    assert build_orders(situation("tts", step_going_on=True, unfinished=1)) == {}
    assert build_orders(situation("tts", step_going_on=True, unfinished=0)) == {2: "trains"}


def test_one_cell_at_a_time_turns():
    assert build_orders(situation("Tss", ready_groups=4, unfinished=0)) == {}


def test_at_a_bursts_end_all_but_the_core_serve_again():
    assert build_orders(situation("ttt", must_publish=True)) == {0: "serves", 1: "serves", 2: "serves"}
    assert build_orders(situation("ttt", must_publish=True, ready_groups=4, unfinished=16)) == {
        1: "serves",
        2: "serves",
    }
    assert build_orders(situation("ttt", must_publish=True, ready_groups=4, unfinished=17)) == {
        0: "serves", 1: "serves", 2: "serves",
    }  # fmt: skip


def test_a_single_elastic_cell_turns_when_its_batch_is_ready_and_back_at_the_bursts_end():
    assert build_orders(situation("s", ready_groups=4, unfinished=3)) == {0: "trains"}
    assert build_orders(situation("t", step_going_on=True)) == {}
    assert build_orders(situation("t", must_publish=True, ready_groups=4)) == {0: "serves"}


def test_a_single_cell_serves_again_when_a_burst_lacks_groups_for_its_next_step():
    assert build_orders(situation("t", ready_groups=3)) == {0: "serves"}
    assert build_orders(situation("t", ready_groups=4)) == {}


def test_colocate_turns_all_together_when_every_rollout_has_ended():
    assert build_orders(situation("ss", mode="colocate", ready_groups=4, unfinished=1)) == {}
    assert build_orders(situation("ss", mode="colocate", ready_groups=4)) == {0: "trains", 1: "trains"}
    assert build_orders(situation("tt", mode="colocate", must_publish=True)) == {0: "serves", 1: "serves"}


def test_colocate_collects_the_groups_of_its_whole_burst_first():
    assert build_orders(situation("s", mode="colocate", ready_groups=4, steps_left_in_burst=2)) == {}
    assert build_orders(situation("s", mode="colocate", ready_groups=8, steps_left_in_burst=2)) == {0: "trains"}
    assert build_orders(situation("t", mode="colocate", ready_groups=4, steps_left_in_burst=1)) == {}


def test_async_splits_once_and_for_all():
    assert build_orders(situation("sss", mode="async")) == {0: "trains"}
    assert build_orders(situation("tss", mode="async", must_publish=True)) == {}


@given(
    roles=st.text("st", min_size=1, max_size=6),
    mode=st.sampled_from(["elastic", "colocate", "sync", "async"]),
    unfinished=st.integers(0, 60),
    ready=st.integers(0, 12),
    going_on=st.booleans(),
    must_publish=st.booleans(),
)
def test_orders_are_settled_once_given_and_never_strand_unfinished_rollouts(
    roles, mode, unfinished, ready, going_on, must_publish
):
    now = situation(
        roles, mode=mode, unfinished=unfinished, ready_groups=ready, step_going_on=going_on, must_publish=must_publish
    )
    orders = build_orders(now)
    assert all(orders[cell.index] != cell.wanted for cell in now.cells if cell.index in orders)
    turned = [index for index, role in orders.items() if role == "trains"]
    if mode == "elastic" and turned and len(roles) > 1:
        assert len(turned) == 1
        still = sum(cell.capacity for cell in now.cells if cell.wanted == "serves" and cell.index not in turned)
        assert unfinished <= still
