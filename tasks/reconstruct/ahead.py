"""Work on the next tables while the last one is being written: encoding leaves the interpreter to other threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")

_AT_ONCE = 2  # tables in work, which bounds memory


def ahead(work: Callable[[Given], Made], given: Iterable[Given]) -> Iterator[Made]:
    """What `work` makes of each, in order; never more than a few are under way or waiting to be taken."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="reconstruct") as pool:
        waiting: deque[Future[Made]] = deque()
        for one in given:
            waiting.append(pool.submit(work, one))
            if len(waiting) > _AT_ONCE:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
