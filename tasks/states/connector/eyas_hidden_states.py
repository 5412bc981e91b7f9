"""vLLM's connector for hidden states, for CPUs too: its own copies through pinned memory, which only GPUs have.

Runs in the engine's environment, found through PYTHONPATH, and imports nothing of eyas. Source: vLLM 0.32.0,
example_hidden_states_connector.py.
"""

from __future__ import annotations

import fcntl
import os
from functools import partial
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (  # pyright: ignore[reportMissingImports]
    ExampleHiddenStatesConnector,
    extract_from_kv_cache,
)


class _Done:
    """An event of a copy that is complete, in the manner of torch.cuda.Event."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """True."""
        return True


class HiddenStatesConnector(ExampleHiddenStatesConnector):
    """On a GPU vLLM's own; on a CPU the states are copied at once and written by the same threads."""

    def _submit_async_write(self, pending: Any) -> None:
        if self._kv_cache.is_cuda:
            super()._submit_async_write(pending)
            return
        if not self._is_tp_rank_zero:
            return
        blocks = torch.tensor(pending.block_ids)[:, None] * self._block_size
        slots = (blocks + torch.arange(self._block_size)).flatten()
        states = extract_from_kv_cache(self._kv_cache, slots, len(pending.token_ids)).contiguous().clone()
        tensors = {"hidden_states": states, "token_ids": pending.token_ids.clone()}
        os.makedirs(os.path.dirname(pending.filename), exist_ok=True)
        done = _Done()
        write = self._executor.submit(self._write_tensors, tensors, done, pending.filename, self._locked(pending))
        self._req_copy_events[pending.req_id] = done
        self._req_futures[pending.req_id] = write
        write.add_done_callback(partial(self._on_write_done, pending.req_id))

    def _locked(self, pending: Any) -> int | None:
        """The descriptor of the request's lock, which readers wait for."""
        held = self._lock_fds.pop(pending.req_id, None)
        if held is None and self.use_lock:
            held = os.open(pending.filename + ".lock", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
            fcntl.flock(held, fcntl.LOCK_EX)
        return held
