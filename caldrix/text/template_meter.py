"""The meter inside a chat template: what jinja2 runs without a hook, rewritten to report its cost.

Loop turns, comparisons, slices, concatenations and literals pass through filters of their own,
which account for them in the rendering's `Allowance`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.runtime import str_join
from jinja2.visitor import NodeTransformer

from caldrix.text.allowance import current_allowance

_LITERAL_BITS = 32


def metered(template: nodes.Template) -> nodes.Template:
    """``template`` with what jinja2 runs without a hook reporting its cost."""
    return cast("nodes.Template", _Meter().visit(template))


class _Meter(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802  # the visitor's naming
        self.generic_visit(node)
        # Each turn may write the constant text in the loop's body again.
        written = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        node.body.insert(0, nodes.ExprStmt(_turn(1 + written, node.lineno), lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(_turn(1, node.lineno), node.test, lineno=node.lineno)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filter(node, "_admit") if isinstance(node.arg, nodes.Slice) else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "_concat")

    def visit_List(self, node: nodes.List) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filter(node, "_admit")

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        pairs: list[nodes.Expr] = [
            nodes.Tuple([pair.key, pair.value], "load", lineno=pair.lineno) for pair in node.items
        ]
        return _filter(nodes.List(pairs, lineno=node.lineno), "_dict")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        for operand in node.ops:
            operand.expr = _filter(operand.expr, "_compared")
        return node

    def visit_Const(self, node: nodes.Const) -> nodes.Const:  # noqa: N802
        # Python's compiler keeps constants in a hash table, which is slow for chosen large ones.
        if isinstance(node.value, int) and node.value.bit_length() > _LITERAL_BITS:
            raise jinja2.TemplateSyntaxError(
                f"a number of more than {_LITERAL_BITS} bits is written out", node.lineno
            )
        return node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filter(node, "_admit") if node.ctx == "load" else node


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _turn(work: int, line: int) -> nodes.Filter:
    return _filter(nodes.Const(work, lineno=line), "_turn")


def _take_turn(work: int) -> bool:
    current_allowance.get().spend(work)
    return True


def _admit(value: Any) -> Any:
    return current_allowance.get().admit(value)


def metered_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """Python's ``dict``, its keys checked before they are hashed into one table."""
    if len(args) == 1 and not isinstance(args[0], Mapping):
        pairs = [tuple(pair) for pair in args[0]]
        current_allowance.get().hashed(pair[0] for pair in pairs if pair)
        args = (pairs,)
    return dict(*args, **kwargs)


def _compared(value: Any) -> Any:
    """One side of a comparison that is about to be made."""
    current_allowance.get().spend(1)
    return value


def _concat(values: list[Any]) -> str:
    allowance = current_allowance.get()
    allowance.fits(allowance.weigh(values))
    return allowance.admit(str_join(values))


METERS: dict[str, Callable[..., Any]] = {
    "_turn": _take_turn,
    "_admit": _admit,
    "_compared": _compared,
    "_concat": _concat,
    "_dict": lambda pairs: _admit(metered_dict(pairs)),
}
"""Filters that only rewritten templates use, by name."""
