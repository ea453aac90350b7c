"""What the OpenCL lanes draw together of a Program."""

from __future__ import annotations

from collections.abc import Sequence

from caldrix.models.lane import LaneOptions
from caldrix_opencl.plan import Item, make_plan, runs
from caldrix_opencl.weights import Layouts
from tests.support.random_models import random_model


def drawn(family: str, most: int) -> list[tuple[str, ...]]:
    """The items of each run; a product with its norm is marked by an asterisk."""
    model = random_model(family, "Q8_0")
    plan = make_plan(model.program, Layouts(model.weights, LaneOptions(context=64)).of)
    return [named(run) for items in (plan.before, plan.after) for run in runs(items, most)]


def named(run: Sequence[Item]) -> tuple[str, ...]:
    return tuple(type(item).__name__ + ("*" if getattr(item, "norm", None) else "") for item in run)


def test_attention_and_the_products_after_it_are_a_run() -> None:
    """Two layers: queries, keys and values; attention, output, gate and up, down."""
    assert drawn("llama", 4) == [
        ("Product*",),
        ("Turn", "Attend", "Product", "Product*", "Product", "Product*"),
        ("Turn", "Attend", "Product", "Product*", "Product"),
        ("Select",),
        ("Product*",),
    ]


def test_no_more_products_than_a_kernel_takes() -> None:
    assert drawn("llama", 2) == [
        ("Product*",),
        ("Turn", "Attend", "Product", "Product*"),
        ("Product", "Product*"),
        ("Turn", "Attend", "Product", "Product*"),
        ("Product",),
        ("Select",),
        ("Product*",),
    ]
    assert all(len(run) == 1 for run in drawn("llama", 0))


def test_a_norm_with_a_sum_stands_by_itself() -> None:
    """Gemma's norms after attention and after the products of a layer."""
    assert drawn("gemma3", 4)[:4] == [
        ("Product*",),
        ("Turn", "Attend", "Product"),
        ("Norm",),
        ("Product*", "Product"),
    ]
