"""Process settings that must stand before Prefect or torch are imported; whatever the user has set wins.

OpenMP: libgomp's spin wait makes a two-thread process on two busy cores many times slower, so waiting threads sleep.
Prefect: results go to the store, nothing is pickled by default, and the ephemeral server gets time to start.
"""

import os
from pathlib import Path

STORE = Path(os.environ.get("EYAS_STORE", "store")).expanduser().resolve()

SETTINGS = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(STORE / "results"),
    "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
    "PREFECT_CLIENT_MAX_RETRIES": "15",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "eyas",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_TASKS_RUNNER_THREAD_POOL_MAX_WORKERS": str(os.cpu_count() or 2),
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
}

for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)
