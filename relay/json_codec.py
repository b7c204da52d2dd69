"""Turn dataclasses into JSON values and back.

A dataclass's fields, in their order, are the members of its object; their types are what a reader
checks. Tuples and sets become lists (sets in order), keys that are ints become text. What differs
is declared by the class: in the constants of `JsonDocument`, or by its own `to_json` and
`from_json`, which also count where the class is a part of another one.

Unknown fields are refused: a newer version wrote them, and they mean something. Fields with a
default may be missing: the documents of earlier versions lack them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

from cattrs import ClassValidationError, Converter, IterableValidationError, override
from cattrs.cols import is_mapping, list_structure_factory
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn
from cattrs.v import format_exception, transform_error

from sluice.relay.format_version import parse_json

__all__ = ["OMIT_DEFAULT", "JsonDocument", "from_bytes", "from_values", "to_bytes", "to_values"]

OMIT_DEFAULT = override(omit_if_default=True)
"""The field is left out while it is the default, and written last."""
_MAX_PROBLEMS = 3
_MAX_FOUND_CHARS = 100
_PLAIN = frozenset({int, str, bool, float})
"""Types of fields whose JSON values are taken as they are, once their type is checked."""

T = TypeVar("T")


def to_values(value: Any) -> Any:
    """Return the JSON values of a dataclass, or of a collection of some."""
    return _converter.unstructure(value)


def from_values(kind: type[T], document: Any, name: str) -> T:
    """Parse what `to_values` returned for a value of this type.

    Raises ValueError that names the document, and each field that is wrong with what was found.
    """
    try:
        return _converter.structure(document, kind)
    except (ClassValidationError, IterableValidationError) as error:
        problems = transform_error(error, format_exception=_describe)
        raise ValueError(f"{name}: {'; '.join(problems[:_MAX_PROBLEMS])}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{name}: {error}") from None


def to_bytes(value: Any) -> bytes:
    """Return the content of a file: one line of JSON."""
    return json.dumps(to_values(value), ensure_ascii=False).encode() + b"\n"


def from_bytes(kind: type[T], data: bytes, name: str) -> T:
    """Parse what `to_bytes` returned. Raises NewerFormatError, and ValueError as `from_values`."""
    return from_values(kind, parse_json(data, name), name)


class JsonDocument:
    """A dataclass that is a JSON document or a part of one."""

    __slots__ = ()
    JSON_NAME: ClassVar[str] = ""
    """Names the document in errors, "the state of a job"; the class's name without it."""
    JSON_FIELDS: ClassVar[Mapping[str, Any]] = {}
    """The fields that differ, with `OMIT_DEFAULT` or another `cattrs.override`."""
    JSON_COMPLETE: ClassVar[bool] = False
    """Refuse documents without a field that has a default, but for `JSON_FIELDS`."""
    JSON_ARRAY: ClassVar[bool] = False
    """Write a list of the fields' values in place of an object."""

    def to_json(self) -> Any:
        """Return it as JSON values; `from_json` is the inverse."""
        return to_values(self)

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Parse what `to_json` returned. Raises ValueError."""
        return from_values(cls, document, cls.JSON_NAME or cls.__name__)

    def to_bytes(self) -> bytes:
        """Return the content of a file: one line of JSON."""
        return to_bytes(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse what `to_bytes` returned. Raises NewerFormatError, ValueError."""
        return from_bytes(cls, data, cls.JSON_NAME or cls.__name__)


def _describe(error: BaseException, kind: type | None) -> str:
    return str(error) if isinstance(error, ValueError) else format_exception(error, kind)


def _checked(*kinds: type) -> Callable[[Any, Any], Any]:
    """Return a hook that lets values of these types pass, and no subclass: True is no int."""
    names = " or ".join(kind.__name__ for kind in kinds)

    def check(value: Any, _: Any) -> Any:
        if type(value) not in kinds:
            raise ValueError(f"expected {names}, found {value!r:.{_MAX_FOUND_CHARS}}")
        return value

    return check


def _has_own(name: str) -> Callable[[Any], bool]:
    """Return whether a class has a method that isn't `JsonDocument`'s."""
    usual = inspect.getattr_static(JsonDocument, name)
    return lambda kind: inspect.getattr_static(kind, name, usual) is not usual


def _has_int_keys(kind: Any) -> bool:
    return is_mapping(kind) and get_args(kind)[:1] == (int,)


def _structure_int_keys(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    value_kind = get_args(kind)[1]
    hook = converter.get_structure_hook(value_kind)

    def structure(document: Mapping[str, Any], _: Any) -> dict[int, Any]:
        if value_kind in _PLAIN and {*map(type, document.values())} <= {value_kind}:
            return dict(zip(map(int, document), document.values(), strict=True))
        return {int(key): hook(value, value_kind) for key, value in document.items()}

    return structure


def _unstructure_int_keys(kind: Any, converter: Converter) -> Callable[[Any], dict[str, Any]]:
    hook = converter.get_unstructure_hook(get_args(kind)[1])
    return lambda found: {str(key): hook(value) for key, value in found.items()}


def _is_object(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, JsonDocument)


def _structure_object(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    hook = make_dict_structure_fn(
        kind, converter, _cattrs_forbid_extra_keys=True, **kind.JSON_FIELDS
    )
    is_plain = _plain_check(kind)
    required = (
        {field.name for field in fields(kind)} - kind.JSON_FIELDS.keys()
        if kind.JSON_COMPLETE
        else set()
    )

    def structure(document: Any, _: Any) -> Any:
        if type(document) is not dict:
            raise ValueError(f"expected an object, found {document!r:.{_MAX_FOUND_CHARS}}")
        if is_plain is not None and is_plain(document):
            return kind(*document.values())
        if missing := required - document.keys():
            raise ValueError(f"required field missing: {', '.join(sorted(missing))}")
        return hook(document, kind)

    return structure


def _plain_check(kind: Any) -> Callable[[Mapping[str, Any]], bool] | None:
    """Return whether an object has each field, in order, with a value that can be taken as it is.

    None for a class with other fields than numbers, text and literals. Of ten thousand objects in
    a document the check takes a fifth of the time of the field's hooks, which report what is wrong.
    """
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    literals = {name: get_args(hints[name]) for name in names if get_origin(hints[name]) is Literal}
    types = [str if name in literals else hints[name] for name in names]
    if kind.JSON_FIELDS or not {*types} <= _PLAIN or hasattr(kind, "__post_init__"):
        return None

    def check(document: Mapping[str, Any]) -> bool:
        return (
            [*document] == names
            and [*map(type, document.values())] == types
            and all(document[name] in known for name, known in literals.items())
        )

    return check


def _unstructure_object(kind: Any, converter: Converter) -> Callable[[Any], dict[str, Any]]:
    return make_dict_unstructure_fn(kind, converter, **kind.JSON_FIELDS)


def _is_listed(kind: Any) -> bool:
    made = get_origin(kind)
    return made in (list, frozenset) or (made is tuple and get_args(kind)[-1] is Ellipsis)


def _structure_listed(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    made = get_origin(kind)
    values: Any = list[get_args(kind)[0]]  # type: ignore[misc]
    hook = list_structure_factory(values, converter)

    def structure(document: Any, _: Any) -> Any:
        if type(document) not in (list, tuple):  # text is a sequence, too
            raise ValueError(f"expected a list, found {document!r:.{_MAX_FOUND_CHARS}}")
        return made(hook(document, values))

    return structure


def _is_array(kind: Any) -> bool:
    return getattr(kind, "JSON_ARRAY", False)


def _structure_array(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    hints = get_type_hints(kind)
    values = tuple[tuple(hints[field.name] for field in fields(kind))]  # type: ignore[misc, valid-type]
    hook = converter.get_structure_hook(values)
    return lambda document, _: kind(*hook(document, values))


def _new_converter() -> Converter:
    converter = Converter(
        forbid_extra_keys=True, unstruct_collection_overrides={frozenset: sorted, tuple: list}
    )
    structured = converter.register_structure_hook_factory
    unstructured = converter.register_unstructure_hook_factory
    for kinds in ((int,), (str,), (bool,), (float, int)):
        converter.register_structure_hook(kinds[0], _checked(*kinds))
    structured(_has_int_keys)(_structure_int_keys)
    unstructured(_has_int_keys)(_unstructure_int_keys)
    structured(_is_listed)(_structure_listed)
    structured(_is_object)(_structure_object)
    unstructured(_is_object)(_unstructure_object)
    structured(_is_array)(_structure_array)
    unstructured(
        _is_array, lambda _: lambda value: list(converter.unstructure_attrs_astuple(value))
    )
    structured(_has_own("from_json"), lambda kind: lambda document, _: kind.from_json(document))
    unstructured(_has_own("to_json"), lambda _: lambda value: value.to_json())
    return converter


_converter = _new_converter()
