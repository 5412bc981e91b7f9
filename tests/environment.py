"""Gives the tests a Prefect home of their own, whatever the person who runs them has configured, and no time limits.

Must be imported before Prefect.
"""

import atexit
import os
import shutil
import tempfile

from hypothesis import settings

settings.register_profile("eyas", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("eyas")

_home = tempfile.mkdtemp(prefix="eyas-prefect-")
_owner = os.getpid()  # forked children must not remove it


@atexit.register
def _remove_home() -> None:
    if os.getpid() == _owner:
        shutil.rmtree(_home, ignore_errors=True)


for _name in [name for name in os.environ if name.startswith("PREFECT_") or name == "EYAS_STORE"]:
    del os.environ[_name]
os.environ["PREFECT_HOME"] = _home
os.environ["EYAS_STORE"] = f"{_home}/store"

import tasks.environment  # noqa: E402, F401
