"""Python runs this at its start, where this folder is on PYTHONPATH: torchvision's CUDA build beside a CPU torch.

SGLang imports torchvision, and PyPI has only CUDA builds of it, which expect operators that they cannot register here.
"""

from __future__ import annotations

import importlib.abc
import sys
from typing import Any


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Declares torchvision's operators when it is about to be imported; finds nothing itself."""

    _library: Any = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "torchvision" and self._library is None:
            import torch

            self._library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                self._library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, _BeforeTorchvision())
