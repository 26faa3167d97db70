"""The run config as TOML and back, and what differs between two."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.config import RunConfig
from training.services import TomlError, config_to_toml, differences, toml_to_data


@given(
    seed=st.integers(0, 2**31),
    families=st.lists(st.text(min_size=1, max_size=8), max_size=3),
    temperature=st.floats(0.01, 4.0),
    sampling_seed=st.none() | st.integers(0, 100),
)
def test_a_config_written_as_toml_reads_back_the_same(seed, families, temperature, sampling_seed):
    config = RunConfig.model_validate(
        {
            "seed": seed,
            "tasks": {"mixture": [{"taskset": "a", "families": families}, {"taskset": "b", "weight": 2}]},
            "sampling": {"temperature": temperature, "seed": sampling_seed},
        }
    )
    assert RunConfig.model_validate(toml_to_data(config_to_toml(config))) == config


def test_bad_toml_names_its_line():
    with pytest.raises(TomlError, match="Line 3"):
        toml_to_data('seed = 1\n[model]\nname "x"\n')


def test_toml_that_ends_too_early_names_its_last_line():
    with pytest.raises(TomlError) as caught:
        toml_to_data('seed = 1\nname = "abc')
    assert caught.value.line == 2


def test_only_what_differs_from_the_defaults_is_listed():
    config = RunConfig.model_validate({"optimization": {"steps": 3}, "model": {"name": "other"}})
    assert differences(config) == [("model.name", "other", "smollm2-135m"), ("optimization.steps", 3, 9)]


def test_differences_from_another_config_are_seen_from_that_one():
    base = RunConfig.model_validate({"optimization": {"steps": 3}})
    config = RunConfig.model_validate({"optimization": {"steps": 4}})
    assert differences(config, base) == [("optimization.steps", 4, 3)]
