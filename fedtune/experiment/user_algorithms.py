"""The algorithm in a user's file: errors that would occur later, in a worker, are reported here in one line with the
place.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from fedtune.core.errors import UserError, shown
from fedtune.core.hyper import hyperparameters
from fedtune.core.trees import in_words
from fedtune.experiment.algorithm import Algorithm
from fedtune.user_code import user_files
from fedtune.user_code.references import PICKLED
from fedtune.user_code.user_errors import place_of, reported

PARTS = ("shared", "sends", "schedule", "structural", "predicts")  # class attributes that are tuples of names
SOUND = "_fedtune_is_sound"  # set on a class that passed the checks


def find(name: str) -> type[Algorithm]:
    """The algorithm of a canonical name: the class that it names, or the only one in its file."""
    if user_files.call_options(name):
        raise UserError(f"an algorithm's hyperparameters are given by --set NAME=VALUE, but got {name!r}")
    found = user_files.load(name, "algorithm")
    return checked(_only(found, name) if isinstance(found, ModuleType) else found, name)


def name_of(cls: type) -> str:
    """The value of `--algo` for a class: a built-in name, or a reference to its file.

    A class of a notebook, of the running script, or within a function is pickled by value with everything it uses;
    workers, resume and replay load the pickle.  UserError if it is not an algorithm.
    """
    checked(cls, cls.__name__)
    module = cls.__module__
    if module.startswith("fedtune.trainables."):
        return module.removeprefix("fedtune.trainables.")
    path = getattr(sys.modules.get(module), "__file__", None)
    if module != "__main__" and path and Path(path).suffix == ".py" and cls.__qualname__ == cls.__name__:
        return f"{path}:{cls.__name__}"
    return user_files.of_class(cls, _pickled(cls))


def _pickled(cls: type) -> bytes:
    """The class pickled by value, with what it uses from modules that only this process has."""
    from ray import cloudpickle  # the one that Ray's workers unpickle with

    main = inspect.getmodule(cls)
    by_value = main is not None and main.__name__ != "__main__" and importlib.util.find_spec(main.__name__) is not None
    if by_value:
        cloudpickle.register_pickle_by_value(main)
    try:
        content: bytes = cloudpickle.dumps(cls)
    except Exception as error:  # whatever pickling raises
        raise UserError(
            f"{cls.__name__} is sent to workers as a pickle, but cannot be pickled ({error}); write it into a file"
        ) from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(main)
    return content


def checked(found: Any, name: str) -> type[Algorithm]:
    """The class itself; UserError unless it is an algorithm that can be created with its defaults."""
    if not (isinstance(found, type) and issubclass(found, Algorithm)) or found is Algorithm:
        raise UserError(f"an algorithm must be a subclass of fedtune.Algorithm, but {name} is {in_words(found)}")
    if SOUND not in vars(found):
        _require_sound(found)
        setattr(found, SOUND, True)
    return found


def spaces(name: str) -> dict[str, Any]:
    """The search spaces in an algorithm file's `SPACES`, by name.  UserError if invalid."""
    module = inspect.getmodule(find(name))
    given = getattr(module, "SPACES", None)
    if given is None or name.endswith(PICKLED):  # spaces in a notebook are not stored with a run
        return {}
    named = isinstance(given, Mapping) and all(isinstance(n, str) for n in given)
    if not named or not given or not all(isinstance(value, dict | list) and value for value in given.values()):
        raise UserError(
            "SPACES must be search spaces by name, each a dict of domains or a list of configurations, as in SPACES = "
            f"{{'default': tunable(X, 'lam')}}, but that of {getattr(module, '__file__', name)} is {shown(given)}"
        )
    return dict(given)


def _only(module: ModuleType, name: str) -> type[Algorithm]:
    """The only algorithm that a module defines; UserError unless there is exactly one."""
    own = {n: v for n, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__}
    found = {n: v for n, v in own.items() if issubclass(v, Algorithm) and not n.startswith("_")}
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise UserError(
            f"{name} defines {len(found)} algorithms, {', '.join(found)}; say which: {name}:{next(iter(found))}"
        )
    others = f"only {', '.join(own)}" if own else "none"
    raise UserError(f"an algorithm must be a subclass of fedtune.Algorithm, but {module.__file__} defines {others}")


def _require_sound(cls: type[Algorithm]) -> None:
    """UserError for a class that the engine could not use."""
    known = {f.name for f in fields(cls)}
    if loose := [n for n, v in vars(cls).items() if isinstance(v, Field) and n not in known]:
        raise _refused(cls, f"{loose[0]} is no hyperparameter yet: write @dataclass(frozen=True) above the class")
    if bare := [f.name for f in fields(cls) if f.name not in hyperparameters(cls)]:
        raise _refused(cls, f"a field is a hyperparameter, but {bare[0]} is not declared with hyper(…)")
    for name, method in vars(Algorithm).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            _require_signature(cls, name, method)
    with reported(f"{place_of(cls)}: algorithm {cls.__name__} cannot be made with its defaults"):
        made = cls()
        values = {name: getattr(made, name) for name in PARTS}  # some are properties
    for name, value in values.items():
        if not isinstance(value, tuple) or not all(isinstance(v, str) for v in value):
            raise _refused(cls, f"{name} must be a tuple of names, as in {name} = ('body',), but is {value!r}")
    if not isinstance(cls.presets, Mapping) or not all(isinstance(v, Mapping) for v in cls.presets.values()):
        raise _refused(cls, f"presets must be dicts of hyperparameters by name, but are {cls.presets!r}")


def _require_signature(cls: type[Algorithm], name: str, method: Callable[..., Any]) -> None:
    """UserError unless the class's own method can be called as the engine calls it."""
    given = inspect.getattr_static(cls, name)
    if given is method:
        return
    if isinstance(given, staticmethod | classmethod | property) or not callable(given):
        raise _refused(cls, f"{name} must be an instance method, but is a {type(given).__name__}", given)
    if inspect.iscoroutinefunction(given) or inspect.isasyncgenfunction(given):
        raise _refused(cls, f"{name} must be a plain function, but is async", given)
    wanted = [p for p in inspect.signature(method).parameters if p != "self"]
    try:
        inspect.signature(given).bind(None, *wanted)
    except TypeError as error:
        got = ", ".join(inspect.signature(given).parameters)
        raise _refused(
            cls, f"{name} is called with ({', '.join(['self', *wanted])}), but takes ({got})", given
        ) from error


def _refused(cls: type, why: str, member: Any = None) -> UserError:
    return UserError(f"{place_of(member) or place_of(cls)}: algorithm {cls.__name__}: {why}")
