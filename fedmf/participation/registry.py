"""The registry of participation schemas by their names."""

from typing import Any, TypeVar

from fedmf import checks

Schema = TypeVar("Schema")


class SchemaRegistry(dict[str, type[Schema]]):
    """A mapping from the names of participation schemas, as in configs and on the command line, to
    their classes.
    """

    def check_name(self, name: str, value: Any) -> str:
        """Returns `value` if it is the name of a registered schema, and raises an error otherwise.
        The message calls the argument `name`.
        """
        return checks.one_of(name, value, tuple(self))

    def register(self, schema_class: type[Schema]) -> None:
        """Registers a schema class under its name, the default of its field `schema`.

        Raises:
          TypeError: the name is not a str, or the class inherits from another schema, whose methods
            may rely on a rule that the subclass changes.
          ValueError: another class has the name.
        """
        schema_name = vars(schema_class)["schema"]
        class_name = schema_class.__qualname__
        if not isinstance(schema_name, str):
            raise TypeError(
                f"schema={schema_name!r} of {class_name} is not a str: give the field a str as its "
                "default, and the dataclass no slots"
            )
        base_classes = schema_class.__mro__[1:]
        inherited_names = [
            schema.__qualname__ for schema in self.values() if schema in base_classes
        ]
        if inherited_names:
            raise TypeError(
                f"{class_name} inherits from the schema {inherited_names[0]}: derive it from "
                "fedmf.Participation"
            )
        registered_class = self.get(schema_name, schema_class)
        # A notebook cell that runs again defines its class a second time. The new class then
        # replaces the earlier one of the same name and module.
        is_same_module = registered_class.__module__ == schema_class.__module__
        if not is_same_module or registered_class.__qualname__ != class_name:
            raise ValueError(
                f"schema={schema_name!r} is that of {registered_class.__qualname__}: use another "
                "name"
            )
        self[schema_name] = schema_class
