"""What a case is made of, as source: its function and all it uses, whatever module that stands in.

Followed from the case's function are the names of its module, the fixtures it asks for (there or in
a conftest.py above it), and functions and values imported from the suite's own modules, such as the
shapes of answers. The suite's classes and their instances are not: a new method of the client, or a
new field of an endpoint, would count as a change of every case. Comments, docstrings, annotations,
order and the case's own name don't matter.
"""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from attrs import define, field, frozen

from caldrix_conformance.errors import SuiteError

_Definitions = Mapping[str, Sequence[ast.stmt]]
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)


@frozen
class Source:
    """A case's function and what it uses, without what doesn't change what it does."""

    parts: frozenset[str]
    texts: frozenset[str]
    """The constants in them that are texts; where a value is formatted in, they are globs."""


@define
class SourceTree:
    """The cases in ``folder``, and the modules below ``packages`` that they import from."""

    folder: Path
    packages: Path
    _modules: dict[Path, _Definitions] = field(factory=dict)

    def cases(self) -> Iterator[tuple[str, str]]:
        """Each file and test function there is, by name: for want of a collection of them."""
        for path in sorted(self.folder.rglob("test_*.py")):
            for name, found in self.definitions(path).items():
                if name.startswith("test") and isinstance(found[0], _FUNCTIONS):
                    yield path.relative_to(self.folder).as_posix(), name

    def source(self, file: str, function: str, others: Iterable[str], *, decorated: bool) -> Source:
        """The source of a case, with its fixtures and whatever else is named in ``others``.

        Without its decorators, where the values they hold are compared in some other way. A
        function that no statement of its module names has the whole module for its source. Raises
        SuiteError if a file isn't Python.
        """
        path = self.folder / file
        walk = _Walk(self)
        match self.definitions(path).get(function):
            case [first, *more]:
                case = _anonymous(first)
                walk.enter(path, [case if decorated else _bare(case), *more])
            case _:
                for name in self.definitions(path):
                    walk.follow(path, name)
        for name in sorted(set(others)):
            for place in (path, *self._conftests(path)):
                if name in self.definitions(place):
                    walk.follow(place, name)
                    break
        return Source(frozenset(walk.parts), frozenset(walk.texts))

    def imported_from(self, path: Path, statement: ast.ImportFrom) -> Path | None:
        """The file of the module that is imported from, if it is one of the suite's."""
        parts = statement.module.split(".") if statement.module else []
        base = path.parents[statement.level - 1] if statement.level else self.packages
        module = base.joinpath(*parts)
        for candidate in (module.with_suffix(".py"), module / "__init__.py"):
            if candidate.is_file():
                return candidate
        return None

    def definitions(self, path: Path) -> _Definitions:
        """The statements that make each name of the module at ``path`` what it is."""
        if path not in self._modules:
            self._modules[path] = _definitions(path)
        return self._modules[path]

    def _conftests(self, path: Path) -> Iterator[Path]:
        for folder in path.parents:
            yield folder / "conftest.py"
            if folder == self.folder:
                return


@define
class _Walk:
    """Goes from name to name until nothing new comes."""

    tree: SourceTree
    parts: set[str] = field(factory=set)
    texts: set[str] = field(factory=set)
    _seen: set[tuple[Path, str]] = field(factory=set)

    def follow(self, path: Path, name: str) -> None:
        """Take what ``name`` stands for in the module at ``path``."""
        found = self.tree.definitions(path).get(name, ())
        if found and (path, name) not in self._seen:
            self._seen.add((path, name))
            self.enter(path, found)

    def enter(self, path: Path, statements: Iterable[ast.stmt]) -> None:
        """Take ``statements`` of the module at ``path`` and all they use."""
        for statement in statements:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self._enter_import(path, statement)
                continue
            self.parts.add(ast.dump(statement))
            self.texts.update(_texts(statement))
            for name in _used(statement):
                self.follow(path, name)

    def _enter_import(self, path: Path, statement: ast.Import | ast.ImportFrom) -> None:
        (alias,) = statement.names
        if isinstance(statement, ast.ImportFrom):
            module = self.tree.imported_from(path, statement)
            if module is not None:
                found = self.tree.definitions(module).get(alias.name, ())
                if found and not _is_of_a_class(found[0]):
                    self.follow(module, alias.name)
                    return
        self.parts.add(f"import {alias.name}")


def _is_of_a_class(statement: ast.stmt) -> bool:
    """Whether it defines a class, or makes an instance of one, which goes by a capital letter."""
    value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id[0].isupper()
    return isinstance(statement, ast.ClassDef)


def _definitions(path: Path) -> _Definitions:
    """The statements that make each name of a module what it is; none where there is no file."""
    if not path.is_file():
        return {}
    try:
        module = _Stripped().visit(ast.parse(path.read_bytes()))
    except SyntaxError as error:
        raise SuiteError(f"{path.name} can't be compared: {error}") from error
    found: dict[str, list[ast.stmt]] = {}
    for statement in module.body:
        for name, part in _bound(statement):
            found.setdefault(name, []).append(part)
    return found


def _bound(statement: ast.stmt) -> Iterator[tuple[str, ast.stmt]]:
    if isinstance(statement, _DEFINITIONS):
        yield statement.name, statement
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            yield (alias.asname or alias.name).partition(".")[0], ast.Import([alias])
    elif isinstance(statement, ast.ImportFrom):
        for alias in statement.names:
            one = ast.ImportFrom(statement.module, [alias], statement.level)
            yield alias.asname or alias.name, one
    elif isinstance(statement, ast.If | ast.Try):
        for inner in ast.iter_child_nodes(statement):
            if isinstance(inner, ast.stmt):
                yield from _bound(inner)
    else:
        # TABLE.append(…) and TABLE["x"] = … are part of what TABLE is.
        names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        stored = {
            node.id
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        yield from ((name, statement) for name in sorted(stored or names))


@cache
def _used(statement: ast.stmt) -> Sequence[str]:
    """The names that ``statement`` takes from its module, or from Python."""
    used: set[str] = set()
    tables = [symtable.symtable(ast.unparse(statement), "<case>", "exec")]
    while tables:
        table = tables.pop()
        tables.extend(table.get_children())
        is_module = table.get_type() == "module"
        used.update(
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (is_module or symbol.is_global())
        )
    return sorted(used)


def _texts(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values
            )


def _anonymous(statement: ast.stmt) -> ast.stmt:
    if isinstance(statement, _FUNCTIONS):
        fields = {name: value for name, value in ast.iter_fields(statement) if name != "name"}
        return ast.fix_missing_locations(type(statement)(name="case", **fields))
    return statement


def _bare(statement: ast.stmt) -> ast.stmt:
    if isinstance(statement, _FUNCTIONS):
        fields = dict(ast.iter_fields(statement)) | {"decorator_list": []}
        return ast.fix_missing_locations(type(statement)(**fields))
    return statement


class _Stripped(ast.NodeTransformer):
    """Takes out docstrings and annotations."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if hasattr(node, "body") and node.body == [] and not isinstance(node, ast.Module):
            node.body.append(ast.Pass())
        return ast.fix_missing_locations(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            # In a class it makes a field.
            return ast.copy_location(ast.Expr(node.target), node)
        return self.generic_visit(ast.copy_location(ast.Assign([node.target], node.value), node))
