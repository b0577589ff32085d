"""Validation of YAML files by pydantic; each mistake has file, line, key and the nearest valid spelling."""

from __future__ import annotations

import ast
import copy
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar, cast, get_args, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, PydanticKnownError, PydanticOmit, core_schema

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.yaml.reader import Where, YamlFile, dotted_path
from kestrel_lab.core.yaml.type_checks import is_of_type, type_name

MAX_REPORTED: Final = 40
"""Most mistakes in one message."""

_T = TypeVar("_T")
_Entry = TypeVar("_Entry", bound="BaseModel | Written")


class Entry(BaseModel):
    """A mapping of a file; unknown keys and values of another type are errors."""

    # Most of these are parts of others: a validator of its own is built when one is first used alone.
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


if TYPE_CHECKING:  # type checkers take the fields as the parameters, as of any model
    from pydantic._internal._model_construction import ModelMetaclass as _ReportsUsageErrors
else:

    class _ReportsUsageErrors(type(BaseModel)):
        """The metaclass of `Declared`: what Python code gets wrong is a `UsageError`.

        A constructor of its own would do that too, but pydantic then calls it for files as well, and the keys
        of nested mistakes would be lost.
        """

        def __call__(self, *args: Any, **values: Any) -> Any:
            try:
                return super().__call__(*args, **values)
            except ValidationError as error:
                raise UsageError(join_problems(explain_all(self, error, self.__name__))) from error


class Declared(Entry, metaclass=_ReportsUsageErrors):
    """A mapping of a file that Python code makes and holds as well: it cannot be changed.

    `WrittenAs` and `PythonOnly` say how a file differs from Python. Raises `UsageError` for values that do
    not fit.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy; changed values are checked, as those of a new object are."""
        if not update:
            return super().model_copy(deep=deep)
        # `__dict__` also holds cached properties, which belong to the unchanged object.
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**fields, **update})


def python_value(value: Any, kind: Any) -> Any:
    """Return what Python code gives for a field of the type `kind`; raises `UsageError` for another type,
    such as what a file would say.
    """
    if not is_of_type(value, kind):
        raise UsageError(
            f"in Python code this is {type_name(kind)}, not {one_line(repr(value), 60)}: what a file says is "
            "made with check(…), Gate(…) and the like"
        )
    return value


@dataclass(frozen=True)
class WrittenAs:
    """How files write a value that is of another type in Python; its place is in `Annotated[type, …]`.

    What Python code gives is taken as it is, if it is of the type. A `UsageError` of `make` is reported with
    the key.
    """

    form: Any
    """The type of what is written."""
    make: Callable[[Any, Mapping[str, Any]], Any] = lambda value, _: value
    """Makes the value from what is written, and from the context of the file."""

    def __get_pydantic_core_schema__(self, kind: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: Any, inner: core_schema.ValidatorFunctionWrapHandler, info: Any) -> Any:
            if info.context:
                return self.make(inner(value), info.context)
            return python_value(value, kind)

        return core_schema.with_info_wrap_validator_function(read, handler.generate_schema(self.form))


@dataclass(frozen=True)
class OneOf:
    """The words that a text may be, in `Annotated[str, OneOf(…)]`: a `Literal` made of declared words."""

    words: tuple[str, ...]

    def __get_pydantic_core_schema__(self, _kind: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.literal_schema(list(self.words))


@dataclass(frozen=True, kw_only=True)
class Written:
    """A mapping of a file that Python code holds as a dataclass: its fields are the keys.

    Fields of both are declared once, without pydantic; a subclass adds those of files only. A sequence is a
    list in the file, the metadata of a field are its bounds, and the text below a field describes it for
    editors.
    """

    TEXT: ClassVar[str] = ""
    """The key whose value may be written alone, as a text."""
    LEFT_OUT: ClassVar[frozenset[str]] = frozenset()
    """Fields that cannot be written."""

    written: frozenset[str] = frozenset()
    """The keys that are given."""

    @classmethod
    @cache
    def form(cls) -> type[Entry]:
        """Return the model that reads such a mapping."""
        kinds = get_type_hints(cls, localns=_AS_WRITTEN, include_extras=True)
        keys: dict[str, Any] = {}
        for one in fields(cls):
            about: dict[str, Any] = {
                "alias": one.name,
                "default": one.default,
                "default_factory": one.default_factory,
            }
            about |= one.metadata
            given: dict[str, Any] = {word: value for word, value in about.items() if value is not MISSING}
            # The underscore: pydantic has a method `schema`, and refuses a field of that name.
            name = f"{one.name}_" if hasattr(Entry, one.name) else one.name
            if one.name != "written" and one.name not in cls.LEFT_OUT:
                keys[name] = (kinds[one.name], Field(**given))
        form: type[_Form] = create_model(cls.__name__, __base__=_Form, __doc__=cls.__doc__, **keys)
        form.KIND = cls
        return form

    @classmethod
    def __get_pydantic_core_schema__(cls, _kind: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(cls._made, handler.generate_schema(cls.form()))

    @classmethod
    def _made(cls, form: Entry) -> Self:
        given = {name.removesuffix("_"): getattr(form, name) for name in type(form).model_fields}
        return cls(**given, written=frozenset(name.removesuffix("_") for name in form.model_fields_set))


class _Form(Entry):
    """What reads a `Written` mapping."""

    KIND: ClassVar[type[Written]]

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {cls.KIND.TEXT: value} if cls.KIND.TEXT and isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        mapping = handler.resolve_ref_schema(handler(core))
        texts = _field_texts(cls.KIND)
        for name, about in cls.model_fields.items():
            if text := texts.get(name.removesuffix("_")):
                mapping["properties"][about.alias]["description"] = text
        if not cls.KIND.TEXT:
            return mapping
        return {"anyOf": [{"type": "string"}, mapping], "description": mapping.pop("description", "")}


_AS_WRITTEN: Final = {"Json": Any, "Mapping": dict, "Sequence": list}
"""What the types of dataclasses are in files, by their names in annotations, which are texts."""


def _field_texts(kind: type) -> dict[str, str]:
    """Return the text below each field of a dataclass, those of its bases included."""
    found: dict[str, str] = {}
    for base in reversed([one for one in kind.__mro__ if is_dataclass(one)]):
        for top in ast.parse(inspect.getsource(base)).body:
            for pair in itertools.pairwise(top.body if isinstance(top, ast.ClassDef) else ()):
                match pair:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(text))):
                        found[name] = inspect.cleandoc(text).strip()
    return found


class PythonOnly:
    """Marks, in `Annotated[type, PythonOnly()]`, a value that no file can give: its key is an unknown one."""

    def __get_pydantic_core_schema__(self, kind: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: Any, info: Any) -> Any:
            if info.context:
                raise PydanticKnownError("extra_forbidden")
            return python_value(value, kind)

        return core_schema.with_info_plain_validator_function(read)

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _: GetJsonSchemaHandler) -> JsonSchemaValue:
        raise PydanticOmit


FILE: Final[Mapping[str, Any]] = {"file": True}
"""The least context in which files are validated; Python code is validated without one."""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _read(kind: type[_Entry], value: object, context: Mapping[str, Any]) -> _Entry:
    found: _Entry = _adapter(cast("Any", kind)).validate_python(value, context=context)
    return found


def validate(
    document: YamlFile,
    kind: type[_Entry],
    value: Any = None,
    at: Where = (),
    context: Mapping[str, Any] = FILE,
) -> _Entry:
    """Return the document, or its `value` at the place `at`, as a `kind`.

    Raises `UsageError` with one line for each mistake, in the order of the file.
    """
    try:
        return _read(kind, document.value if value is None else value, context)
    except ValidationError as error:
        details = sorted(error.errors(), key=lambda detail: document.line((*at, *detail["loc"])))
        raise UsageError(
            join_problems(
                f"{document.place((*at, *detail['loc']))}: {_explain(kind, detail)}" for detail in details
            )
        ) from error


def validate_partly(
    document: YamlFile,
    kind: type[_Entry],
    problems: list[str],
    stand_ins: Mapping[str, Json],
    context: Mapping[str, Any] = FILE,
) -> _Entry | None:
    """Return the valid part of the document as a `kind`, for further checks, and add its mistakes to
    `problems`.

    Invalid keys are left out and missing ones are taken from `stand_ins`, so that every other value keeps its
    line. Returns `None` when no valid document is left.
    """
    value = copy.deepcopy(document.value)
    for again in range(_ROUNDS):
        try:
            return _read(kind, value, context)
        except ValidationError as error:
            details = sorted(error.errors(), key=lambda detail: document.line(detail["loc"]))
        # Later rounds only find consequences of the repairs.
        if not again:
            problems += [f"{document.place(detail['loc'])}: {_explain(kind, detail)}" for detail in details]
        if not isinstance(value, dict):
            value = {}
        # All are found before one is made: a repair removes the place of its neighbours.
        for repair in [_find_repair(value, detail["loc"], detail["type"], stand_ins) for detail in details]:
            repair()
    return None


_ROUNDS: Final = 6
"""Repairs of a document; each may uncover a mistake one level further down."""


def _find_repair(value: Any, loc: Where, error: str, stand_ins: Mapping[str, Json]) -> Callable[[], object]:
    """Return what removes the value at `loc`, or inserts its stand-in where one is missing."""
    within: list[tuple[Any, Any]] = []
    inside: Any = value
    part: Any
    for part in loc:
        if (isinstance(inside, dict) and part in inside) or (
            isinstance(inside, list) and isinstance(part, int) and part < len(inside)
        ):
            within.append((inside, part))
            inside = inside[part]
        elif isinstance(inside, dict) and error == "missing":
            return partial(inside.__setitem__, str(part), copy.deepcopy(stand_ins.get(str(part))))
    if within and error in _NOT_A_MAPPING:
        holder, part = within[-1]
        return partial(holder.__setitem__, part, {})
    while within:
        holder, part = within.pop()
        if isinstance(holder, dict):
            return partial(holder.pop, part, None)
    return lambda: None


def collect_error(document: YamlFile, where: Where, problems: list[str], make: Callable[[], _T]) -> _T | None:
    """Return the result of `make`; its `UsageError` is added to `problems` with the place `where`."""
    try:
        return make()
    except UsageError as error:
        # Collected, so that all mistakes of a file are reported at once.
        problems.append(f"{document.place(where)}: {error}")
        return None


def join_problems(problems: Iterable[str]) -> str:
    """Return one line for each of the first `MAX_REPORTED` problems."""
    lines = list(problems)
    more = [f"… and {len(lines) - MAX_REPORTED} more"] if len(lines) > MAX_REPORTED else []
    return "\n".join(lines[:MAX_REPORTED] + more)


_NOT_A_MAPPING: Final = ("model_type", "dict_type", "model_attributes_type")
_TYPES: Final = {
    "int_type": "a whole number",
    "float_type": "a number",
    "list_type": "a list",
    "tuple_type": "a list",
    "bool_type": "true or false",
}


def explain_all(kind: type, error: ValidationError, place: str = "") -> Iterator[str]:
    """Yield a line for each mistake of a `kind` that comes from no document: `place`, key and reason."""
    for detail in error.errors():
        where = ": ".join(filter(None, (place, dotted_path(detail["loc"]))))
        yield f"{where}: {_explain(kind, detail)}" if where else _explain(kind, detail)


def _explain(kind: type, detail: ErrorDetails) -> str:
    error, value = detail["type"], detail["input"]
    if error == "value_error":
        return str(detail["ctx"]["error"])
    if error == "extra_forbidden":
        return f"unknown key; {_key_hint(kind, detail['loc'])}"
    if error == "missing":
        return "is missing"
    if error in _NOT_A_MAPPING:
        return f"must be a mapping of keys to values, not {_quote(value)}"
    if error == "string_type":
        hint = "; put it in quotes" if isinstance(value, int | float) else ""
        return f"must be text, not {_quote(value)}{hint}"
    if error in _TYPES:
        return f"must be {_TYPES[error]}, not {_quote(value)}"
    if error in ("too_short", "string_too_short"):
        return "must not be empty"
    return f"{detail['msg'].replace('Input should', 'must')}, not {_quote(value)}"


def _key_hint(kind: type, where: Where) -> str:
    """Return where an unknown key belongs: to a mapping further out, or as another word."""
    *outer, key = where
    for depth in range(len(outer) - 1, -1, -1):
        if str(key) in _keys(kind, tuple(outer[:depth])):
            place = dotted_path(tuple(outer[:depth])) or "the file itself"
            return f"{str(key)!r} is a key of {place}: write it there, beside {str(outer[depth])!r}"
    return did_you_mean(str(key), _keys(kind, tuple(outer)))


def _keys(kind: type, where: Where) -> list[str]:
    """Return the keys that are allowed in the mapping at `where`."""
    inside: list[Any] = [kind]
    for part in where:
        fields = [_fields(model) for annotation in inside for model in _models(annotation)]
        inside = [found[part] for found in fields if part in found] or inside
    return sorted(
        {str(name) for annotation in inside for model in _models(annotation) for name in _fields(model)}
    )


def _fields(model: type[BaseModel]) -> dict[str | int, Any]:
    return {
        str(field.validation_alias or name): (field.annotation, *field.metadata)
        for name, field in model.model_fields.items()
        if not any(isinstance(mark, PythonOnly) for mark in field.metadata)
    }


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a value of the annotated type may contain, within lists and mappings too."""
    # A generic alias of builtins, `list[X]`, is an instance of `type` too, and no class.
    if isinstance(annotation, type) and not get_args(annotation):
        if issubclass(annotation, BaseModel):
            yield annotation
        elif issubclass(annotation, Written):
            yield annotation.form()
        return
    if isinstance(annotation, WrittenAs):
        yield from _models(annotation.form)
    for inner in annotation if isinstance(annotation, tuple) else get_args(annotation):
        yield from _models(inner)


def _quote(value: object) -> str:
    return "nothing" if value is None else one_line(repr(value), 60)
