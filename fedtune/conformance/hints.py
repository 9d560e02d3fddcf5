"""Advice for an error that client or server code raised, chosen by its message."""

from __future__ import annotations

import re

from fedtune.core.about import page
from fedtune.user_code import user_errors

_HINTS = (
    (r"cannot run stacked", "use torch.where and masks: no .item(), `if tensor`, boolean index or nonzero"),
    (r"inplace|in-place", "write a new tensor (a + b) instead of changing one (a += b, a.add_(b))"),
    (
        r"same dtype|expected .*scalar type|found dtype|Double|two devices|same device",
        "create constants with the dtype and device of their operands: x.new_zeros(…), torch.zeros_like(x), y.to(x)",
    ),
    (r"shares parts that the net lacks", "name in `shared` parts of the net (body, head) or parts that `build` adds"),
    (
        r"became NaN or infinite",
        "keep logarithms and divisions away from 0 (clamp(min=1e-12)), or lower the default learning rates and weights",
    ),
    (r"positional argument", f"give the method the arguments that {page('reference/hooks')} lists"),
    (r"KeyError", "an entry of `sends` must be made by `init`, and what `aggregate` reads must be sent by `upload`"),
)


def of_error(error: BaseException) -> str:
    """Advice for this error; general advice if its message is unknown."""
    text = f"{user_errors.kind(error)}: {user_errors.text(error)}"
    for pattern, advice in _HINTS:
        if re.search(pattern, text):
            return advice
    return "run it with --debug to see the full traceback"
