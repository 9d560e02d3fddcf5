"""Import torchvision's Python parts, whichever build of it is installed beside torch.

A wheel compiled for CUDA stops beside a CPU-only torch with "operator torchvision::nms does not exist".  What fedtune
uses needs none of these operators.  So in this case the two that are described at import are declared here without an
implementation, and the import is repeated.  All of fedtune imports `datasets` and `models` from this module.
"""

from __future__ import annotations

import sys
import warnings

import torch

_declared: torch.library.Library | None = None  # an operator exists only as long as the Library that declares it


def _declare() -> torch.library.Library:
    """Declare torchvision's two operators and discard the import that failed without them."""
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    for module in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
        del sys.modules[module]
    return library


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a missing image extension does not matter: nothing here decodes JPEG
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
        _declared = _declare()
    from torchvision import datasets, models

__all__ = ["datasets", "models"]
