"""Two processes of a cell (FSDP2 over gloo) give the update of one, whether they divide micro-batches or rows."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.training.gloo_worker import CASES, run
from tests.training.tiny import save_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Results of a leader and the follower that it starts, all cases in one go."""
    directory = tmp_path_factory.mktemp("gloo")
    model = save_tiny_model(directory / "model")
    command = [sys.executable, "-m", "tests.training.gloo_worker", str(model), str(directory)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DJANGO_SETTINGS_MODULE": "gyre_web.settings"}
    with (directory / "log").open("w") as log:
        done = subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=550, check=False)
    assert done.returncode == 0, (directory / "log").read_text()[-4000:]
    return {case: torch.load(directory / f"{case}.pt", weights_only=False) for case in CASES}, model, directory


@pytest.mark.parametrize("case", CASES)
def test_two_processes_give_the_result_of_one(found, case):
    results, model, directory = found
    expected, two = run(model, case, None, directory), results[case]
    weights = load_file(directory / f"{case}-2/version/model.safetensors")
    for name, tensor in load_file(directory / f"{case}-1/version/model.safetensors").items():
        assert torch.allclose(weights[name], tensor, atol=2e-5), name
    for one, other in zip(two["logprobs"], expected["logprobs"], strict=True):
        assert np.allclose(one, other, atol=1e-4, equal_nan=True)
    assert two["metrics"] == pytest.approx(expected["metrics"], rel=1e-3, abs=1e-5)
