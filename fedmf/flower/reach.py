"""Search for the objects, functions and classes that hold the state of a wrapped Flower strategy in
their attributes.

Attributes of a library's own objects are neither read nor set.
"""

import collections.abc
import copy
import datetime
import decimal
import dis
import enum
import fractions
import functools
import io
import itertools
import logging
import pathlib
import re
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
from flwr.serverapp.strategy import Strategy

from fedmf.flower.values import is_immutable, is_mutable, items_of

# Types of objects that a program creates anew when it needs them, such as locks and loggers.
_TOOLS = (
    types.ModuleType,
    logging.Logger,
    type(threading.Lock()),
    type(threading.RLock()),
)
# Types of values without state, such as classes and functions. A file cannot store them, but it can
# refer to those that the program creates.
_CONSTANTS = (
    type,
    enum.Enum,
    pathlib.PurePath,
    re.Pattern,
    types.GenericAlias,
    np.dtype,
    np.ufunc,
    datetime.date,
    datetime.timedelta,
    datetime.tzinfo,
    decimal.Decimal,
    fractions.Fraction,
)
# Types of values that have no state of their own and only refer to other objects.
_LINKS = (
    types.MethodType,
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.FunctionType,
    functools.partial,
    functools.partialmethod,
    functools.cached_property,
    type(functools.lru_cache(len)),
    staticmethod,
    classmethod,
    property,
)
_BUILTIN_METHODS = (types.BuiltinFunctionType, types.MethodWrapperType)
_PARTIALS = (functools.partial, functools.partialmethod)
_LINKED = ("__self__", "__func__", "__wrapped__", "func", "args", "keywords", "fget", "fset")
# Packages whose objects hold no state of a strategy, unless the object is a strategy itself.
_SYSTEM = ("fedmf", "flwr")
_DEFAULTS = "__defaults__"
_KEYWORD_DEFAULTS = "__kwdefaults__"
_GLOBAL = "__globals__[{}]"
# CPython's flag Py_TPFLAGS_HEAPTYPE, which marks classes that Python code defines.
_HEAP_TYPE = 1 << 9
_ABSENT = object()


class Reach:
    """The rules that decide which objects belong to a wrapped strategy, and which belong to
    libraries.

    Args:
      strategy: the packages of its classes count as its author's, wherever they are installed.
    """

    def __init__(self, strategy: Strategy) -> None:
        strategy_classes = type(strategy).__mro__
        self._packages = {_package(kind.__module__) for kind in strategy_classes} - {
            *_SYSTEM,
            "abc",
        }

    def is_holder(self, value: Any) -> bool:
        """Returns whether a value is an object, class or function whose attributes belong to the
        strategy's state.
        """
        value_type = type(value)
        if isinstance(value, types.FunctionType):
            return self._is_own(value.__module__) or bool(value.__closure__)
        if isinstance(value, type):
            return self._is_own(value.__module__)
        if _has_no_attributes(value):
            return False
        if isinstance(value, Strategy):
            return _package(value_type.__module__) != "fedmf"
        if value_type is types.SimpleNamespace:
            return True
        is_own = self._is_own(value_type.__module__) or hasattr(value_type, "__dataclass_fields__")
        is_python = all(map(_has_no_hidden_state, value_type.__mro__))
        return is_own and is_python and _package(value_type.__module__) not in _SYSTEM

    def is_opaque(self, value: Any) -> bool:
        """Returns whether a value has a state that cannot be read."""
        if _has_no_attributes(value):
            return False
        return not self.is_holder(value) and _package(type(value).__module__) not in _SYSTEM

    def attributes(self, holder: Any) -> dict[str, Any]:
        """Returns the attributes of an object, class or function by name."""
        if isinstance(holder, types.FunctionType):
            return self._of_function(holder)
        if isinstance(holder, type):
            class_variables = vars(holder).items()
            return {name: value for name, value in class_variables if _is_data(name, value)}
        slot_names = [name for name in _slots(type(holder)) if hasattr(holder, name)]
        return {name: getattr(holder, name) for name in slot_names} | getattr(
            holder, "__dict__", {}
        )

    def children(self, value: Any) -> Iterator[tuple[str, Any]]:
        """Yields the name and the value of each attribute or item that a value refers to."""
        if self.is_holder(value):
            yield from self.attributes(value).items()
            if not isinstance(value, type | types.FunctionType):
                for kind in type(value).__mro__:
                    if self.is_holder(kind):
                        yield f"@{kind.__qualname__}", kind
        elif isinstance(value, _LINKS):
            for name in _LINKED:
                linked_value = getattr(value, name, None)
                if not isinstance(linked_value, types.ModuleType | type(None)):
                    yield name, linked_value
        else:
            yield from items_of(value)

    def _is_own(self, module: str | None) -> bool:
        """Returns whether a module belongs to the strategy's author and not to a library."""
        # A function without a module counts as code of the strategy's author.
        if not module:
            return True
        if _package(module) in _SYSTEM:
            return False
        return _package(module) in self._packages or not _is_library(module)

    def _of_function(self, function: types.FunctionType) -> dict[str, Any]:
        """Returns a function's attributes, globals, defaults and closure variables, by name."""
        attribute_values = dict(vars(function))
        for name in self._globals_of(function):
            attribute_values[_GLOBAL.format(name)] = function.__globals__[name]
        attribute_values[_DEFAULTS] = function.__defaults__
        attribute_values[_KEYWORD_DEFAULTS] = function.__kwdefaults__
        for name, cell in _cells(function).items():
            try:
                attribute_values[name] = cell.cell_contents
            except ValueError:  # A closure variable may have no value yet.
                continue
        return attribute_values

    def _globals_of(self, function: types.FunctionType) -> list[str]:
        """Returns the names of the global variables that a function of the strategy's author
        uses.
        """
        if not self._is_own(function.__module__):
            return []
        global_names = _names(function.__code__) & function.__globals__.keys()
        return sorted(name for name in global_names if not name.startswith("__"))


def set_attribute(holder: Any, name: str, value: Any = _ABSENT) -> None:
    """Sets an attribute that `Reach.attributes` returned. Without a value the attribute is
    deleted.
    """
    if isinstance(holder, types.FunctionType):
        _set_of_function(holder, name, value)
    elif isinstance(holder, type):
        if value is _ABSENT:
            delattr(holder, name)
        else:
            setattr(holder, name, value)
    elif name in _slots(type(holder)):
        # A frozen dataclass refuses `setattr`, so the methods of `object` are used.
        if value is _ABSENT:
            object.__delattr__(holder, name)
        else:
            object.__setattr__(holder, name, value)
    elif value is _ABSENT:
        vars(holder).pop(name, None)
    else:
        vars(holder)[name] = value


def _set_of_function(function: types.FunctionType, name: str, value: Any) -> None:
    """Sets or deletes one of the variables of a function that `Reach._of_function` returns."""
    closure_cell = _cells(function).get(name)
    if name in (_DEFAULTS, _KEYWORD_DEFAULTS):
        setattr(function, name, value)
    elif closure_cell is not None:
        if value is _ABSENT:
            del closure_cell.cell_contents
        else:
            closure_cell.cell_contents = value
    else:
        variable_scope = vars(function)
        if name.startswith(_GLOBAL[:12]):
            name = name[12:-1]
            variable_scope = function.__globals__
        if value is _ABSENT:
            variable_scope.pop(name, None)
        else:
            variable_scope[name] = value


def is_tool(value: Any) -> bool:
    """Returns whether a value is of a type that programs create anew, such as a lock or a
    logger.
    """
    return isinstance(value, _TOOLS)


def is_link(value: Any) -> bool:
    """Returns whether a value is a method or a partial function, which refers to another object."""
    return isinstance(value, (*_BUILTIN_METHODS, types.MethodType, *_PARTIALS))


def link_to_copy(link: Any, memo: dict[int, Any]) -> Any:
    """Returns a method or partial function that refers to the copies of its objects.

    Args:
      link: value for which `is_link` is true.
      memo: memo of `copy.deepcopy`: copies by the ids of the originals.
    """
    if isinstance(link, _PARTIALS):
        copied_function = link.func
        if is_link(copied_function):
            copied_function = link_to_copy(copied_function, memo)
        args, keywords = copy.deepcopy((link.args, link.keywords), memo)
        return type(link)(copied_function, *args, **keywords)
    link_owner = getattr(link, "__self__", None)
    copied_owner = memo.get(id(link_owner), link_owner)
    if copied_owner is link_owner:
        return link
    if isinstance(link, types.MethodType):
        return types.MethodType(link.__func__, copied_owner)
    return getattr(copied_owner, link.__name__)


def _has_no_attributes(value: Any) -> bool:
    """Returns whether a value has no attributes that could be state."""
    is_value = is_mutable(value) or is_immutable(value) or type(value) is object
    return is_value or isinstance(value, (*_TOOLS, *_CONSTANTS, *_LINKS))


def is_iterator(value: Any) -> bool:
    """Returns whether a value is a generator or an iterator, which every use advances."""
    return isinstance(value, collections.abc.Iterator) and not isinstance(value, io.IOBase)


def _is_data(name: str, value: Any) -> bool:
    """Returns whether a class variable was set by the class's author and not by Python."""
    if isinstance(value, _LINKS):
        return True
    is_of_python = name.startswith("__") or name == "_abc_impl"
    return not is_of_python and not isinstance(
        value, types.MemberDescriptorType | types.GetSetDescriptorType
    )


def _has_no_hidden_state(kind: type) -> bool:
    """Returns whether a base class adds no state to its objects apart from attributes."""
    is_of_python = bool(kind.__flags__ & _HEAP_TYPE)
    return is_of_python or kind.__basicsize__ == object.__basicsize__


def _slots(kind: type) -> list[str]:
    """Returns the names in the __slots__ of a class and of its base classes."""
    class_variables = itertools.chain.from_iterable(vars(base).items() for base in kind.__mro__)
    return [
        name for name, value in class_variables if isinstance(value, types.MemberDescriptorType)
    ]


def _cells(function: types.FunctionType) -> dict[str, types.CellType]:
    """Returns the closure cells of a function by the names of their variables."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


@functools.cache
def _names(code: types.CodeType) -> frozenset[str]:
    """Returns the names of the global variables that a function and the functions inside it use."""
    inner_codes = (code for code in code.co_consts if isinstance(code, types.CodeType))
    global_names = {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname.endswith("_GLOBAL")
    }
    return frozenset(global_names).union(*map(_names, inner_codes))


def _package(module: str) -> str:
    """Returns the name of a module's top-level package."""
    return module.partition(".")[0]


@functools.cache
def _is_library(module: str) -> bool:
    """Returns whether a module belongs to Python or to an installed package."""
    if _package(module) in sys.stdlib_module_names or module == "builtins":
        return True
    module_file = getattr(sys.modules.get(module), "__file__", None) or ""
    return not {"site-packages", "dist-packages"}.isdisjoint(pathlib.PurePath(module_file).parts)
