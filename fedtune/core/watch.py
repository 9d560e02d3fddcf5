"""What Python runs meanwhile, beside code that was looked into, PyTorch's, Python's and ours."""

from __future__ import annotations

import gc
import sys
from types import CodeType, FrameType
from typing import Any

from fedtune.core.pure_functions import KNOWN

_TEXT = "torch._tensor_str"  # turns values into text, past every other check


class Watch:
    """Notes what Python runs that nobody has looked into."""

    def __init__(self, codes: list[CodeType]) -> None:
        """codes: of functions that were looked into."""
        self.codes = {id(code): code for code in codes}
        self.stranger = ""
        self.collects = False

    def __enter__(self) -> None:
        """From now on, in this thread."""
        if sys.getprofile():
            self.stranger = "runs under a profiler"
            return
        self.collects = gc.isenabled()
        gc.disable()  # at whatever moment it came, it would call what others have registered with it
        sys.setprofile(self._called)

    def __exit__(self, *_: object) -> None:
        """Until now."""
        if sys.getprofile() == self._called:
            sys.setprofile(None)
        if self.collects:
            gc.enable()

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or self.stranger or id(frame.f_code) in self.codes:
            return
        module = str(frame.f_globals.get("__name__", ""))
        root = module.split(".")[0]
        if module != _TEXT and (root in KNOWN or root in sys.stdlib_module_names or root.startswith("namedtuple_")):
            self.codes[id(frame.f_code)] = frame.f_code
        else:
            self.stranger = (
                f"runs {frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_code.co_firstlineno})"
            )
