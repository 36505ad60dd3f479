"""A mypy plugin: classes made by `flax.struct.dataclass` have a method `replace`."""

from __future__ import annotations

from mypy.nodes import ARG_STAR2, Argument, Var
from mypy.plugin import ClassDefContext, Plugin
from mypy.plugins.common import add_method_to_class
from mypy.plugins.dataclasses import dataclass_class_maker_callback
from mypy.types import AnyType, TypeOfAny
from mypy.typevars import fill_typevars


def _add_replace(context: ClassDefContext) -> bool:
    anything = AnyType(TypeOfAny.explicit)
    changes = Argument(Var("changes", anything), anything, None, ARG_STAR2)
    add_method_to_class(context.api, context.cls, "replace", [changes], fill_typevars(context.cls.info))
    return dataclass_class_maker_callback(context)


class StructPlugin(Plugin):
    def get_class_decorator_hook_2(self, fullname: str):
        return _add_replace if fullname == "flax.struct.dataclass" else None


def plugin(version: str) -> type[Plugin]:
    return StructPlugin
