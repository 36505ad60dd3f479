"""`llmrl props table`: several methods on the published tasks, compared with the published results."""

from __future__ import annotations

from llmrl_jax.options.command import command
from llmrl_jax.systems.props.settings import TableConfig


@command(TableConfig)
def table(config: TableConfig) -> int:
    """Measure several methods on the fifteen tasks, and write a page and JSON with the published results for
    comparison.

    `--run.resume runs/props-table` continues stopped searches, and adds tasks and methods to the page."""
    from llmrl_jax.systems.props.table_run import make_table

    return make_table(config)
