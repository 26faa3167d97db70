"""Real engine processes: vLLM on a tiny random model, so that starting it is most of the time these tests take."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from environments.catalog import convert_gguf, find_gguf
from environments.models import Engine, Model
from training.config import EngineSection
from training.engine_client import EngineClient
from training.engine_command import Listening, Weights, build_command, build_environment
from training.engine_weights import TOLERANCE, check_weights, mean_difference, probe_ids
from training.engines import EngineError, RunningEngine, StaleWeights, attach_engine, start_engine

VOCABULARY = 512
CONFIG = EngineSection(dtype="float32", kv_cache_gb=0.2, max_context_tokens=1024, max_running=8)


def write_weights(directory: Path, seed: int, *, head: bool = True) -> Path:
    """A tied two-layer Llama, with its head written too."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.2,
        architectures=["LlamaForCausalLM"],
        dtype="float32",
    )
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    state = {name: value.clone().contiguous() for name, value in model.state_dict().items()}
    if not head:
        state.pop("lm_head.weight", None)
    directory.mkdir(parents=True)
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(directory)
    return directory


def trainer_logprobs(directory: Path, ids: list[int]) -> list[float]:
    """What a trainer computes for these weights: logprob of each id after the first."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)(torch.tensor([ids])).logits[0]
    return logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


# --- without a process ---


def test_the_key_is_in_the_environment_and_never_in_the_arguments(tmp_path):
    listening = Listening(key="secret-key", socket=tmp_path / "s")
    weights = Weights(name="m", path=tmp_path, config_path=tmp_path, context_length=512)
    command = build_command(CONFIG, weights, listening)
    environment = build_environment(CONFIG, listening, [0], {"VLLM_API_KEY": "x", "PATH": "/bin"}, private=tmp_path)
    assert "secret-key" not in " ".join(command)
    assert "training.engine_front.EngineFront" in command
    assert environment["GYRE_ENGINE_KEY"] == "secret-key"
    assert environment["VLLM_RPC_BASE_PATH"] == str(tmp_path)
    assert environment["OMP_NUM_THREADS"] == "1"
    assert "VLLM_API_KEY" not in environment


@pytest.mark.slow
def test_rounding_is_no_alarm_and_another_model_is_one(tmp_path):
    """In bfloat16 the built-in model rounds the probe's improbable tokens by far more than small models do."""
    import torch
    from transformers import AutoModelForCausalLM

    convert_gguf(find_gguf(), tmp_path)

    def logprobs(model):
        ids = torch.tensor([probe_ids(model.config.vocab_size)])
        with torch.no_grad():
            logits_TV = model(ids).logits[0, :-1].float()
        return logits_TV.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].tolist()

    exact = logprobs(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))
    rounded_model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert mean_difference(logprobs(rounded_model), exact) < TOLERANCE["bfloat16"] / 1.5
    layer = rounded_model.model.layers[15].mlp.down_proj.weight
    torch.nn.init.zeros_(layer)
    assert mean_difference(logprobs(rounded_model), exact) > 1.5 * TOLERANCE["bfloat16"]


def test_weights_without_a_head_are_refused(tmp_path):
    with pytest.raises(EngineError, match=r"no \*.safetensors"):
        check_weights(tmp_path)
    with pytest.raises(EngineError, match=r"no lm_head.weight"):
        check_weights(write_weights(tmp_path / "w", 1, head=False))


def test_the_probe_is_the_same_everywhere_and_fits_small_vocabularies():
    assert probe_ids(512) == probe_ids(512)
    assert max(probe_ids(256)) < 256
    assert len(set(probe_ids(49152))) == 48


# --- with the scripted engine: the life of a process, without vLLM ---


def start_scripted(model: Model, directory: Path) -> RunningEngine:
    config = EngineSection(kind="scripted")
    return start_engine(
        pool="p", name="s", model=model, weights_path=None, version=3, config=config, directory=directory, cores=None
    )


@pytest.fixture
def scripted(tmp_path, db):
    model = Model.objects.create(name="scripted", path=str(tmp_path), renderer="scripted", context_length=4096)
    engine = start_scripted(model, tmp_path)
    yield engine
    engine.end_process()


def test_a_started_engine_serves_and_a_stopped_one_leaves_nothing(scripted):
    assert (scripted.row.state, scripted.client.version()) == (Engine.State.SERVING, "3")
    assert scripted.poll() is not None
    scripted.stop()
    assert not psutil.pid_exists(scripted.pid)
    assert Engine.objects.get(pk=scripted.row.pk).state == Engine.State.STOPPED
    assert attach_engine(scripted.row) is None
    assert not Path(scripted.row.base_url.removeprefix("unix://")).parent.exists()


def test_a_start_that_dies_before_it_noted_the_process_leaves_none(tmp_path, db, monkeypatch):
    def die(row, state):
        started.append(state.pid)
        raise OSError("killed here")

    started: list[int] = []
    monkeypatch.setattr("training.engines.save_state", die)
    model = Model.objects.create(name="scripted", path=str(tmp_path), renderer="scripted", context_length=4096)
    with pytest.raises(EngineError, match="killed here"):
        start_scripted(model, tmp_path)
    wait_until(lambda: psutil.Process(started[0]).status() == psutil.STATUS_ZOMBIE)  # it is a child of this test


def test_a_killed_engine_fails_its_row_with_a_reason(scripted):
    os.kill(scripted.pid, signal.SIGKILL)
    wait_until(lambda: not scripted.alive())
    assert scripted.poll() is None
    row = Engine.objects.get(pk=scripted.row.pk)
    assert (row.state, "ended" in row.state_reason) == (Engine.State.FAILED, True)


def test_publishing_wakes_a_sleeping_engine_with_its_new_version(scripted, tmp_path):
    scripted.sleep()
    wait_until(lambda: psutil.Process(scripted.pid).status() == psutil.STATUS_STOPPED)
    assert Engine.objects.get(pk=scripted.row.pk).state == Engine.State.HOLDING
    other = attach_engine(Engine.objects.get(pk=scripted.row.pk))
    assert other is not None
    other.publish(tmp_path, 4)
    assert (other.client.version(), other.client.is_paused()) == ("4", False)
    row = Engine.objects.get(pk=scripted.row.pk)
    assert (row.state, row.version) == (Engine.State.SERVING, 4)


def test_an_engine_that_ends_while_starting_says_why(tmp_path, db, monkeypatch):
    monkeypatch.setattr("training.engines.build_command", lambda *given: ["/bin/sh", "-c", "echo ValueError: bad >&2"])
    model = Model.objects.create(name="scripted", path=str(tmp_path), renderer="scripted", context_length=4096)
    with pytest.raises(EngineError, match="ValueError: bad"):
        start_scripted(model, tmp_path)
    assert Engine.objects.get().state == Engine.State.FAILED


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- with vLLM ---

engine_test = pytest.mark.engine


@pytest.fixture(scope="module")
def places(tmp_path_factory, django_db_setup, django_db_blocker):
    """Weights of three versions and a model row; the rows are committed, as other processes would see them."""
    root = tmp_path_factory.mktemp("engines")
    weights = {seed: write_weights(root / f"v{seed}", seed) for seed in (0, 1, 2)}
    with django_db_blocker.unblock():
        model = Model.objects.create(name="tiny-llama", path=str(weights[0]), renderer="scripted", context_length=1024)
        yield root, weights, model
        Engine.objects.filter(model_name="tiny-llama").delete()
        model.delete()


def start(places, name: str) -> RunningEngine:
    root, _, model = places
    return start_engine(
        pool="test", name=name, model=model, weights_path=None, version=0, config=CONFIG, directory=root, cores=None
    )


@pytest.fixture(scope="module")
def engine(places, django_db_blocker):
    with django_db_blocker.unblock():
        running = start(places, "shared")
        yield running
        if running.alive():
            running.stop()


class Stream(threading.Thread):
    """One open streaming request."""

    def __init__(self, engine: RunningEngine, num_tokens: int = 600):
        super().__init__(daemon=True)
        self.prompt = [3, 5, 7]
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[tuple[int, int, str]] = []
        self._num_tokens = num_tokens
        self._url, self._key = engine.row.base_url, engine.row.api_key
        self.start()

    def run(self) -> None:
        sampling = {"max_tokens": self._num_tokens, "temperature": 1.0, "logprobs": 1, "ignore_eos": True}
        body = {"model": "tiny-llama", "token_ids": self.prompt, "stream": True, "sampling_params": sampling}
        transport = httpx.HTTPTransport(uds=self._url.removeprefix("unix://"))
        headers = {"authorization": f"Bearer {self._key}"}
        with httpx.Client(transport=transport, base_url="http://e", timeout=200, headers=headers) as client:
            with client.stream("POST", "/inference/v1/generate", json=body) as response:
                for line in response.iter_lines():
                    if line.startswith("data: {"):
                        self._take(json.loads(line[6:]))

    def _take(self, chunk: dict) -> None:
        for choice in chunk["choices"]:
            self.ids += choice.get("token_ids") or []
            self.logprobs += [e["logprob"] for e in (choice.get("logprobs") or {}).get("content") or []]
            self.versions += [(v["start"], v["end"], v["version"]) for v in choice.get("weight_versions") or []]

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + 200
        while len(self.ids) < count and self.is_alive():
            assert time.monotonic() < deadline, f"only {len(self.ids)} tokens"
            time.sleep(0.002)

    def finish(self) -> "Stream":
        self.join(200)
        assert len(self.ids) == len(self.logprobs) == self._num_tokens
        return self


@engine_test
@pytest.mark.django_db
def test_ids_in_gives_ids_logprobs_and_versions_out(engine, places):
    stream = Stream(engine, 20).finish()
    assert stream.versions == [(0, 20, "0")]
    expected = trainer_logprobs(places[1][0], stream.prompt + stream.ids)[2:]
    assert mean_difference(stream.logprobs, expected) < 1e-5


@engine_test
@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/pause", "/collective_rpc", "/resume", "/inference/v1/generate"])
def test_an_engine_refuses_everything_without_its_key(engine, path):
    stranger = httpx.Client(
        transport=httpx.HTTPTransport(uds=engine.row.base_url.removeprefix("unix://")), base_url="http://e"
    )
    assert stranger.post(path, json={}).status_code == 401
    assert not engine.client.is_paused()
    socket = Path(engine.row.base_url.removeprefix("unix://"))
    assert socket.parent.stat().st_mode & 0o077 == 0


@engine_test
@pytest.mark.django_db
@pytest.mark.parametrize(("policy", "seed", "version"), [("recompute", 1, 1), ("keep", 2, 2)])
def test_an_open_request_goes_on_across_a_publish_and_reports_both_versions(engine, places, policy, seed, version):
    before = engine.row.version
    weights = places[1][seed]
    stream = Stream(engine)
    stream.wait_for(50)
    reference = trainer_logprobs(weights, probe_ids(VOCABULARY))
    seconds = engine.publish(weights, version, policy, reference_logprobs=reference)
    stream.finish()
    [(start, cut, old), (also_cut, end, new)] = stream.versions
    assert (start, old, new, end) == (0, str(before), str(version), 600)
    assert 50 <= cut == also_cut < 600
    assert seconds < 10
    assert Engine.objects.get(pk=engine.row.pk).version == version
    assert engine.row.state == Engine.State.SERVING
    expected = trainer_logprobs(weights, stream.prompt + stream.ids)[2:]
    difference = mean_difference(stream.logprobs[cut:], expected[cut:])
    assert (difference < 1e-4) == (policy == "recompute"), difference


@engine_test
@pytest.mark.django_db
def test_a_held_engine_stands_still_until_released(engine):
    stream = Stream(engine, 400)
    stream.wait_for(20)
    engine.hold("test")
    assert Engine.objects.get(pk=engine.row.pk).state == Engine.State.HOLDING
    time.sleep(0.1)
    count = len(stream.ids)
    time.sleep(0.2)
    assert len(stream.ids) == count < 400
    engine.release()
    stream.finish()
    assert Engine.objects.get(pk=engine.row.pk).state == Engine.State.SERVING


@engine_test
@pytest.mark.django_db
def test_a_sleeping_engine_uses_no_processor_and_wakes_with_its_requests(engine):
    stream = Stream(engine, 400)
    stream.wait_for(20)
    engine.sleep()
    others = attach_engine(engine.row)
    assert others is not None
    assert others.state.asleep
    assert others.poll() is None
    wait_until(lambda: psutil.Process(engine.pid).status() == psutil.STATUS_STOPPED)
    engine.wake()
    stream.finish()
    assert engine.row.state == Engine.State.SERVING


@engine_test
@pytest.mark.django_db
def test_a_publish_whose_author_dies_in_the_middle_ends_by_itself(engine, places):
    engine.client.pause(keep_cache=False, lease_s=0.5, version=9)
    engine.client.reload(str(places[1][1]))
    assert engine.client.is_paused()
    Stream(engine, 5).finish()
    assert (engine.client.is_paused(), engine.client.version()) == (False, "9")
    engine.publish(places[1][2], 3)


@engine_test
@pytest.mark.django_db
def test_another_owner_attaches_and_reads_the_load(engine):
    stream = Stream(engine, 400)
    stream.wait_for(5)
    other = attach_engine(Engine.objects.get(pk=engine.row.pk))
    assert other is not None
    load = other.poll()
    assert load is not None
    assert load.num_running == 1
    assert 0 < load.kv_use < 1
    row = Engine.objects.get(pk=engine.row.pk)
    assert (row.num_running, row.heartbeat_at is not None) == (1, True)
    stream.finish()


@engine_test
@pytest.mark.django_db
def test_a_directory_without_head_leaves_the_engine_as_it_was(engine, tmp_path):
    version = engine.row.version
    with pytest.raises(EngineError, match=r"lm_head.weight"):
        engine.publish(write_weights(tmp_path / "w", 4, head=False), 8)
    assert engine.row.state == Engine.State.SERVING
    assert engine.client.version() == str(version)
    Stream(engine, 5).finish()


@engine_test
@pytest.mark.django_db
def test_weights_that_did_not_arrive_fail_the_engine(engine, places, tmp_path, monkeypatch):
    """Last of the shared engine's tests: it ends it."""
    monkeypatch.setattr(EngineClient, "reload", lambda self, path: None)
    with pytest.raises(StaleWeights, match="did not change"):
        engine.publish(places[1][0], 10)
    assert not engine.alive()
    row = Engine.objects.get(pk=engine.row.pk)
    assert (row.state, "did not change" in row.state_reason) == (Engine.State.FAILED, True)
    assert attach_engine(row) is None


@engine_test
@pytest.mark.django_db
def test_a_stale_head_is_found_and_a_killed_engine_fails_its_row(places, tmp_path):
    """One start for both: the stale head is found by a copy of the engine object, which then does not end it."""
    engine = start(places, "killed")
    try:
        weights = write_weights(tmp_path / "new", 5)
        other = trainer_logprobs(places[1][1], probe_ids(VOCABULARY))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunningEngine, "end_process", lambda self, grace_s=0: None)
            with pytest.raises(StaleWeights, match="differ from the trainer's"):
                engine.publish(weights, 1, reference_logprobs=other)
        members = [p.pid for p in psutil.process_iter() if os.getsid(p.pid) == engine.pid]
        assert engine.alive()
        os.kill(engine.pid, signal.SIGKILL)
        wait_until(lambda: not engine.alive())
        assert engine.poll() is None
        row = Engine.objects.get(pk=engine.row.pk)
        assert (row.state, "ended" in row.state_reason) == (Engine.State.FAILED, True)
        assert len(members) > 1
    finally:
        engine.end_process()
