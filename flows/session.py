"""What every flow does first, wherever it runs: the store is opened, logs are kept readable and free of secrets, and
pickled results are made impossible."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NoReturn

from prefect.serializers import PickleSerializer

from tasks.artifacts.redaction import RedactFilter
from tasks.artifacts.store import open_store

_HANDLED_LOGGERS = ("", "prefect", "prefect.flow_runs", "prefect.task_runs", "prefect.extra", "eyas")


def begin() -> Path:
    """Prepare this process for a flow run and return the store's folder.

    Raises:
        StoreError: the store cannot be used.
    """
    logging.getLogger("eyas").setLevel(logging.INFO)
    for name in _HANDLED_LOGGERS:
        for handler in logging.getLogger(name).handlers:
            if not any(isinstance(existing, RedactFilter) for existing in handler.filters):
                handler.addFilter(RedactFilter())
    PickleSerializer.dumps = _refuse_pickle
    PickleSerializer.loads = _refuse_pickle
    return open_store()


def _refuse_pickle(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise RuntimeError("a task tried to pickle its result: eyas stores Parquet only (use @artifact_task)")
