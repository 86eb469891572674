"""Registry of participation schemas: a dataclass derived from `Participation` adds itself."""

from typing import TYPE_CHECKING, Any

from fedmf import checks

if TYPE_CHECKING:
    from fedmf.participation.base import Participation

# Class of each schema, by its name in configs and on the command line.
SCHEMAS: "dict[str, type[Participation]]" = {}


def check_schema_name(name: str, value: Any) -> str:
    """Returns `value`, the name of a registered schema, for the argument `name`."""
    return checks.one_of(name, value, tuple(SCHEMAS))


def register_schema(schema_class: "type[Participation]") -> None:
    """Registers a class under the name of its schema.

    Raises:
      TypeError: the name is not a str, or the class inherits from another schema, whose methods may
        rely on a rule that the subclass changes.
      ValueError: another class has the name.
    """
    name = schema_class.schema
    class_name = schema_class.__qualname__
    if not isinstance(name, str):
        raise TypeError(
            f"schema={name!r} of {class_name} is not a str: give the field a str as its default, "
            "and the dataclass no slots"
        )
    base_classes = schema_class.__mro__[1:]
    inherited = [schema.__qualname__ for schema in SCHEMAS.values() if schema in base_classes]
    if inherited:
        raise TypeError(
            f"{class_name} inherits from the schema {inherited[0]}: derive it from "
            "fedmf.Participation"
        )
    registered = SCHEMAS.get(name, schema_class)
    # A notebook cell that runs again defines the class again, which then replaces the earlier one.
    is_same_definition = (registered.__module__, registered.__qualname__) == (
        schema_class.__module__,
        class_name,
    )
    if not is_same_definition:
        raise ValueError(f"schema={name!r} is that of {registered.__qualname__}: use another name")
    SCHEMAS[name] = schema_class
