"""Ctrl-C and SIGTERM in a terminal: stop at once, since every step can be killed at any line and goes on later.

Only while servers are being asked the first one lets what is in flight, which is paid for, arrive; a second one stops.

Left to themselves, Prefect and the thread pool would first wait for all running tasks, which may take hours.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Crashed

from tasks.generate.serve.stopping import request_stop

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TELL_SECONDS = 3


@contextmanager
def stopping_at_once() -> Iterator[None]:
    """While the block runs, an interrupt ends this process; must be entered in the main thread."""
    before = {number: signal.signal(number, _stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, _frame: FrameType | None) -> None:
    if request_stop():
        with suppress(RuntimeError):
            print("\nstopping in order; once more stops at once", file=sys.stderr, flush=True)
        return
    _stop_now(number)


def _stop_now(number: int) -> NoReturn:
    try:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        with suppress(RuntimeError):  # the signal came in the middle of another print
            print(
                "\nstopped; what is finished is kept, the same command goes on from there", file=sys.stderr, flush=True
            )
        context = FlowRunContext.get()
        if context and context.flow_run:
            _tell_prefect(number, context.flow_run.id)
    finally:
        os._exit(128 + number)  # child servers see it, and end


def _tell_prefect(number: int, flow_run: UUID) -> None:
    """Set the flow run's state, in a thread that is not waited for long: the interrupted code may hold any lock."""
    api = PREFECT_API_URL.value()
    told = _thread.allocate_lock()
    told.acquire()

    def tell() -> None:
        state = Crashed(message=f"stopped by {signal.Signals(number).name} in the terminal")
        try:
            with (
                temporary_settings({PREFECT_API_URL: api}),
                get_client(sync_client=True, httpx_settings={"timeout": _TELL_SECONDS}) as client,
            ):
                client.set_flow_run_state(flow_run, state, force=True)
        except (httpx.HTTPError, PrefectException, RuntimeError) as exc:
            print(f"Prefect was not told: {exc}", file=sys.stderr)
        finally:
            told.release()

    _thread.start_new_thread(tell, ())
    told.acquire(timeout=_TELL_SECONDS)
