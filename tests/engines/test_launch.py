"""Servers that are started for a task: ready or clearly refused, watched while they run, and gone afterwards."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from schemas.errors import EngineError, RunStopped
from schemas.serving import LaunchSpec
from tasks.engines.launch import launched, require_model
from tests.engines.installing import ROOT, install_in_place_of
from tests.engines.processes import is_alive, wait_until_gone

STAND_IN = Path(__file__).with_name("stand_in.py")


@pytest.fixture(autouse=True)
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment for vLLM in which the stand-in takes its place."""
    root = tmp_path / "engines"
    install_in_place_of("vllm", root, str(STAND_IN))
    monkeypatch.setenv("EYAS_ENGINES", str(root))
    return root


def spec(*flags: str, **fields: object) -> LaunchSpec:
    return LaunchSpec.model_validate({"engine": "vllm", "flags": flags, "start_seconds": 20, **fields})


def processes(log: Path) -> list[int]:
    """The process ids that the stand-in said."""
    found = re.search(r"^processes (\d+) (\d+)$", log.read_text(), re.MULTILINE)
    assert found, log.read_text()
    return [int(found[1]), int(found[2])]


def test_a_server_answers_within_the_block_and_nothing_of_it_is_left_after(store: Path) -> None:
    with launched(spec(), Path("/models/some"), "some") as server:
        assert httpx.get(f"{server.url}/v1/models").json() == {"data": [{"id": "some"}]}
        running = processes(server.log)
        assert server.pid == running[0]
        assert all(map(is_alive, running))
        server.check()
    assert server.log.parent == store / "logs"
    assert not any(map(is_alive, running))


def test_a_server_that_does_not_end_in_order_is_killed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.engines.launch._STOP_SECONDS", 0.3)
    with launched(spec("--ignore-term"), Path("some"), "some") as server:
        running = processes(server.log)
    assert not any(map(is_alive, running))


def test_what_it_prints_is_logged_without_secrets(
    store: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", "very-secret-indeed")
    with caplog.at_level(logging.INFO, "eyas.engines"), launched(spec(), Path("some"), "some") as server:
        assert "OPENROUTER_API_KEY = None" in server.log.read_text()
    lines = {(record.levelname, record.getMessage()) for record in caplog.records}
    assert ("INFO", "vllm: loading") in lines
    assert ("WARNING", "vllm: WARNING this is a stand-in with OPENROUTER_API_KEY = None") in lines


def test_two_servers_have_ports_and_logs_of_their_own(store: Path) -> None:
    with launched(spec(), Path("some"), "some") as one, launched(spec(), Path("some"), "some") as other:
        assert one.url != other.url
        assert one.log != other.log
    with launched(spec(), Path("some"), "some") as third:
        assert third.log == one.log


def test_an_engine_that_is_not_installed_names_the_remedy(store: Path) -> None:
    with pytest.raises(EngineError, match=r"sglang is not installed in .*make engines ENGINES=sglang"):
        launched(LaunchSpec(engine="sglang"), Path("some"), "some").__enter__()


def test_an_engine_whose_installation_broke_off_is_not_used(store: Path, engines: Path) -> None:
    (engines / "vllm" / ".unfinished").touch()
    with pytest.raises(EngineError, match="was not finished"):
        launched(spec(), Path("some"), "some").__enter__()


def test_a_server_that_dies_at_start_says_why(store: Path) -> None:
    with pytest.raises(
        EngineError, match=r"ended with exit code 1 before it was ready; (.|\n)*RuntimeError: no kernel image"
    ):
        launched(spec("--die-at-start"), Path("some"), "some").__enter__()


def test_a_server_that_is_not_ready_in_time_is_given_up(store: Path) -> None:
    with pytest.raises(EngineError, match=r"not ready within 3 s: raise launch\.start_seconds"):
        launched(spec("--start-seconds", "60", start_seconds=3), Path("some"), "some").__enter__()
    wait_until_gone(*processes(store / "logs" / "vllm-some-1.log"))


def test_a_server_that_dies_in_the_middle_takes_the_place_of_the_error_it_causes(store: Path) -> None:
    def work() -> None:
        with launched(spec("--die-after", "1"), Path("some"), "some") as server:
            wait_until_gone(server.pid)
            httpx.get(f"{server.url}/v1/models")

    with pytest.raises(EngineError, match=r"ended with exit code 9; (.|\n)*out of memory"):
        work()


def test_a_server_that_is_killed_says_so_when_asked(store: Path) -> None:
    with launched(spec(), Path("some"), "some") as server:
        helper = processes(server.log)[1]
        os.kill(server.pid, signal.SIGKILL)
        wait_until_gone(server.pid, helper)
        with pytest.raises(EngineError, match="was killed by signal 9"):
            server.check(5)


def test_a_start_that_is_stopped_is_not_waited_for(store: Path) -> None:
    log = store / "logs" / "vllm-some-1.log"

    def has_begun() -> bool:
        return log.exists() and "processes" in log.read_text()

    with pytest.raises(RunStopped, match="while vllm started"):
        launched(spec("--start-seconds", "60"), Path("some"), "some", has_begun).__enter__()
    wait_until_gone(*processes(log))


def test_errors_that_are_not_the_servers_stay_as_they_are(store: Path) -> None:
    with pytest.raises(KeyError), launched(spec(), Path("some"), "some"):
        raise KeyError


def test_a_port_that_is_taken_is_refused_before_anything_starts(store: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(EngineError, match=f"port {port} is taken by another program"):
            launched(spec(port=port), Path("some"), "some").__enter__()
    assert not (store / "logs").exists()


def test_a_server_with_another_model_is_refused(store: Path) -> None:
    with pytest.raises(EngineError, match="serves other, not some"):
        launched(spec("--claims", "other"), Path("some"), "some").__enter__()


def test_where_nothing_answers_no_model_is_served() -> None:
    with pytest.raises(EngineError, match="does not say which models it has"):
        require_model("http://127.0.0.1:9", "some")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a keeper of all that descends from it")
def test_nothing_outlives_a_parent_that_is_killed(store: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from schemas.serving import LaunchSpec\n"
        "from tasks.engines.launch import launched\n"
        "with launched(LaunchSpec(engine='vllm'), Path('some'), 'some') as server:\n"
        "    print(server.log, flush=True); time.sleep(600)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "EYAS_STORE": str(tmp_path / "own")}
    environment.pop("PREFECT_RESULTS_LOCAL_STORAGE_PATH", None)
    command = [sys.executable, "-c", f"import tasks.environment\n{code}"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        log = Path(parent.stdout.readline().strip())
        running = processes(log)
        assert all(map(is_alive, running))
        parent.kill()
    wait_until_gone(*running)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"flags": ["--port=3"]}, "launch.flags has --port=3: give launch.port"),
        ({"flags": ["--dtype", "half"]}, "give launch.dtype"),
        ({"environment": {"HF_TOKEN": "x"}}, "no secret may stand in a recipe"),
    ],
)
def test_what_eyas_sets_itself_and_secrets_are_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        spec(**{"flags": [], **fields})
