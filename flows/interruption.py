"""Ctrl-C and SIGTERM in a terminal: stop at once, since every step can be killed at any line and goes on later.

Left to themselves, Prefect and the thread pool would first wait for all running tasks, which may take hours.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import httpx
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.states import Crashed

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    print("\nstopped; what is finished is kept, the same command goes on from there", file=sys.stderr, flush=True)
    _tell_prefect(number)
    atexit._run_exitfuncs()  # noqa: SLF001 (stops Prefect's temporary server, which would outlive us)
    os._exit(128 + number)


def _tell_prefect(number: int) -> None:
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    state = Crashed(message=f"stopped by {signal.Signals(number).name} in the terminal")
    try:
        with get_client(sync_client=True, httpx_settings={"timeout": 3}) as client:
            client.set_flow_run_state(context.flow_run.id, state, force=True)
    except (httpx.HTTPError, PrefectException, RuntimeError) as exc:
        print(f"Prefect was not told: {exc}", file=sys.stderr)
