"""What a function says by name, read from its bytecode: globals, attributes, and whether it sets anything outside.

The bytecode is what runs, whatever was decorated, patched or typed into a notebook; a source may be another's or none.
Instructions that are not known to touch only a function's own values are refused, those of a later Python among them.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

LIMIT = 1024  # functions that are remembered


class Unprovable(Exception):
    """Code of which it cannot be shown that it depends on its arguments and on known values alone."""

    def __init__(self, where: str, why: str) -> None:
        """where: FILE:LINE; why: what it does there, as a sentence's end."""
        super().__init__(f"{where or 'client code'} {why}")
        self.where, self.why = where, why


class Mention(NamedTuple):
    """A global name with the attributes that follow it: `torch`, `nn`, `functional`, `relu`."""

    names: tuple[str, ...]
    where: str


class Reads(NamedTuple):
    """What a function and those defined within it say by name."""

    codes: tuple[CodeType, ...]
    mentions: tuple[Mention, ...]
    attributes: dict[str, str]  # of values, with a place each
    refusal: Unprovable | None  # why nothing can be said of it


# beginnings of the names of instructions that touch nothing but the function's own values
_INNER = (
    "BEFORE_WITH",
    "BINARY_",
    "BUILD_",
    "CACHE",
    "CALL",
    "CHECK_EXC_MATCH",
    "CLEANUP_THROW",
    "COMPARE_OP",
    "CONTAINS_OP",
    "CONVERT_VALUE",
    "COPY",
    "DELETE_DEREF",
    "DELETE_FAST",
    "DELETE_SUBSCR",
    "DICT_",
    "END_",
    "EXTENDED_ARG",
    "FORMAT_",
    "FOR_ITER",
    "GET_ITER",
    "GET_LEN",
    "GET_YIELD_FROM_ITER",
    "IS_OP",
    "JUMP_",
    "KW_NAMES",
    "LIST_",
    "LOAD_ASSERTION_ERROR",
    "LOAD_ATTR",
    "LOAD_CLOSURE",
    "LOAD_COMMON_CONSTANT",
    "LOAD_CONST",
    "LOAD_DEREF",
    "LOAD_FAST",
    "LOAD_GLOBAL",
    "LOAD_METHOD",
    "LOAD_SMALL_INT",
    "LOAD_SPECIAL",
    "LOAD_SUPER_ATTR",
    "MAKE_CELL",
    "MAKE_FUNCTION",
    "MAP_ADD",
    "MATCH_",
    "NOP",
    "NOT_TAKEN",
    "POP_",
    "PRECALL",
    "PUSH_",
    "RAISE_VARARGS",
    "RERAISE",
    "RESUME",
    "RETURN_",
    "SEND",
    "SET_ADD",
    "SET_FUNCTION_ATTRIBUTE",
    "SET_UPDATE",
    "STORE_DEREF",
    "STORE_FAST",
    "STORE_SLICE",
    "STORE_SUBSCR",
    "SWAP",
    "TO_BOOL",
    "UNARY_",
    "UNPACK_",
    "WITH_EXCEPT_START",
    "YIELD_VALUE",
)
_OUTER = {
    "STORE_GLOBAL": "sets the global {}",
    "DELETE_GLOBAL": "deletes the global {}",
    "STORE_ATTR": "sets .{}",
    "DELETE_ATTR": "deletes .{}",
    "IMPORT_NAME": "imports {} while it runs",
    "LOAD_BUILD_CLASS": "defines a class",
}
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")


_KNOWN: dict[int, Reads] = {}  # by the code's identity, as code of two files may be equal


def reads(code: CodeType) -> Reads:
    """What this code and those within it say."""
    if id(code) not in _KNOWN:
        if len(_KNOWN) >= LIMIT:
            _KNOWN.clear()
        _KNOWN[id(code)] = _reads(code)
    return _KNOWN[id(code)]


def _reads(code: CodeType) -> Reads:
    codes: list[CodeType] = []
    mentions: list[Mention] = []
    attributes: dict[str, str] = {}
    refusal = None
    try:
        _read(code, frozenset(code.co_freevars), codes, mentions, attributes)
    except Unprovable as error:
        refusal = error
    return Reads(tuple(codes), tuple(dict.fromkeys(mentions)), attributes, refusal)


def _read(
    code: CodeType, outside: frozenset[str], codes: list[CodeType], mentions: list[Mention], attributes: dict[str, str]
) -> None:
    """outside: variables of the functions around the outermost one."""
    codes.append(code)
    chain: list[str] = []  # a global and the attributes that follow it
    line, place = code.co_firstlineno, ""
    for step in dis.get_instructions(code):
        line = step.positions.lineno if step.positions and step.positions.lineno else line
        name, where = step.opname, f"{code.co_filename}:{line}"
        if name in ("CACHE", "EXTENDED_ARG"):
            continue
        if name in _ATTRIBUTES and chain and not step.is_jump_target:
            chain.append(str(step.argval))
            continue
        if chain:
            mentions.append(Mention(tuple(chain), place))
        chain = [str(step.argval)] if name == "LOAD_GLOBAL" else []
        place = where
        if name in _OUTER or not name.startswith(_INNER):
            raise Unprovable(where, _OUTER.get(name, f"does {name}").format(step.argval))
        if name in ("STORE_DEREF", "DELETE_DEREF") and step.argval in outside:
            raise Unprovable(where, f"sets {step.argval} of the function around it")
        if name in _ATTRIBUTES:
            attributes.setdefault(str(step.argval), where)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            _read(inner, (outside - {*code.co_cellvars}) & {*inner.co_freevars}, codes, mentions, attributes)


def resolved(
    function: FunctionType, mention: Mention, asked: Callable[[Mapping[str, Any], str], None]
) -> tuple[Any, tuple[str, ...]]:
    """The value that a mention means now, through modules; and the attributes of that value which follow.

    asked(namespace, name): told of each name that is looked for.
    """
    name, *rest = mention.names
    for scope in (function.__globals__, function.__builtins__):  # type: ignore[attr-defined]
        asked(scope, name)
        if name in scope:
            value = scope[name]
            break
    else:
        raise Unprovable(mention.where, f"reads {name}, which is not defined")
    while isinstance(value, ModuleType) and rest:
        held = vars(value)
        asked(held, rest[0])
        if rest[0] not in held:
            raise Unprovable(mention.where, f"reads {'.'.join(mention.names)}, which is made when it is asked for")
        value, rest = held[rest[0]], rest[1:]
    return value, tuple(rest)
