"""Progress is counted from any thread, said now and then, and never in the way of the work."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tasks.progress import _Meter, _Sender, progress


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_it_is_silent_outside_prefect_and_off_a_terminal(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), progress("generate", 3, "answers") as meter:
        meter.advance()
        meter.advance(2)
    assert caplog.records == []


def test_a_line_comes_at_most_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    meter = _Meter("extract", 100, "tokens", None, clock)
    with caplog.at_level(logging.INFO, "eyas.extract"):
        for second in range(1, 26):
            clock.now = second
            meter.advance(4)
    assert [record.name for record in caplog.records] == ["eyas.extract"] * 2
    assert caplog.messages[0].startswith("40 of 100 tokens")
    assert caplog.messages[1].startswith("80 of 100 tokens")


def test_an_artifact_is_sent_at_most_every_five_seconds_and_at_the_end() -> None:
    clock, sent = Clock(), []
    meter = _Meter("train", 50, "steps", lambda percent, text: sent.append(percent), clock)
    for second in range(1, 13):
        clock.now = second
        meter.advance(3)
    meter.close()
    assert sent == [30.0, 60.0, 72.0]


def test_a_short_step_leaves_no_artifact() -> None:
    sent: list[float] = []
    meter = _Meter("export", 1, "files", lambda percent, text: sent.append(percent), Clock())
    meter.advance()
    meter.close()
    assert sent == []


def test_a_failing_prefect_is_said_once_and_does_not_stop_the_work(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(percent: float, text: str) -> None:
        raise ConnectionError("no server")

    sender = _Sender(refuse, "train")
    with sender:
        for percent in (10, 20, 30):
            sender.submit(percent, "on the way")
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
        "progress is no longer sent to Prefect: no server"
    ]


def test_a_server_that_does_not_answer_holds_nothing_up_and_gets_the_newest_state_later() -> None:
    answering, asked, sent = threading.Event(), threading.Event(), []

    def slow(percent: float, text: str) -> None:
        asked.set()
        assert answering.wait(10)
        sent.append(percent)

    sender = _Sender(slow, "train")
    with sender:
        sender.submit(10, "")
        assert asked.wait(5)
        for percent in (20, 30, 40):
            sender.submit(percent, "")
        assert sent == []
        answering.set()
    assert sent == [10, 40]


def test_threads_lose_no_count() -> None:
    meter = _Meter("generate", 4000, "answers", None, Clock())
    moved = []
    meter.move = moved.append
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(lambda: [meter.advance() for _ in range(1000)])
    assert len(moved) == 4000
    assert meter._done == 4000


def test_two_steps_share_one_display_and_take_it_down(monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks import progress as module

    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    barrier = threading.Barrier(2)

    def work(name: str) -> int:
        with progress(name, 2, "rows") as meter:
            meter.advance(2)
            barrier.wait(5)
            shown = module._bars._shown
            barrier.wait(5)
        return shown

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, ["one", "two"])) == [2, 2]
    assert module._bars._display is None
