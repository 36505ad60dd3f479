"""`llmrl props table`: the published tasks by several methods, beside the published figures."""

from __future__ import annotations

from llmrl_jax.run.flags import command
from llmrl_jax.systems.props.settings import TableConfig


@command(TableConfig)
def table(config: TableConfig) -> int:
    """Measure the fifteen tasks by several methods, and write a page and JSON beside the published figures.

    `--run.resume runs/props-table` continues searches that were stopped, and adds tasks and methods to the page."""
    from llmrl_jax.systems.props.table_run import make_table

    return make_table(config)
