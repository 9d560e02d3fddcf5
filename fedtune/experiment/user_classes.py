"""An algorithm given as a Python class: it is referred to by its file, or pickled if there is no file to run again."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path

from fedtune.core.errors import UserError
from fedtune.experiment import user_algorithms
from fedtune.user_code import user_files


def name_of(cls: type) -> str:
    """The value of `--algo` for a class: a built-in name, or a reference to its file.

    A class of a notebook, of the running script, or within a function is pickled by value with everything it uses;
    workers, resume and replay load the pickle.  UserError if it is not an algorithm.
    """
    user_algorithms.checked(cls, cls.__name__)
    module = cls.__module__
    if module.startswith("trainables."):
        return module.removeprefix("trainables.")
    path = getattr(sys.modules.get(module), "__file__", None)
    if module != "__main__" and path and Path(path).suffix == ".py" and cls.__qualname__ == cls.__name__:
        return f"{path}:{cls.__name__}"
    return user_files.of_class(cls, _pickled(cls))


def _pickled(cls: type) -> bytes:
    """The class pickled by value, with what it uses from modules that only this process has."""
    from ray import cloudpickle  # the one that Ray's workers unpickle with

    main = inspect.getmodule(cls)
    by_value = main is not None and main.__name__ != "__main__" and importlib.util.find_spec(main.__name__) is not None
    try:
        if by_value:
            cloudpickle.register_pickle_by_value(main)
        try:
            content: bytes = cloudpickle.dumps(cls)
        finally:
            if by_value:
                cloudpickle.unregister_pickle_by_value(main)
    except Exception as error:  # whatever pickling raises
        raise UserError(
            f"{cls.__name__} is sent to workers as a pickle, but cannot be pickled ({error}); write it into a file"
        ) from error
    return content
