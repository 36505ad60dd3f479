"""Files of demonstrations whose metadata or cells are damaged are named."""

from __future__ import annotations

import json

import pytest

from llmrl_jax.agents import babyai as demos
from llmrl_jax.agents.babyai import FORMAT, METADATA, DemosError, read_demos


pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ROW = {
    "episode": 0, "step": 0, "seed": 0, "level": "l", "mission": "m", "text": "t", "action": 2, "action_name": "go",
    "reward": 1.0, "terminated": True, "truncated": False, "success": True, "direction": 0, "position": [1, 1],
}  # fmt: skip


@pytest.fixture
def written(tmp_path):
    def write(said, **cells):
        rows = {name: [cells.get(name, value)] for name, value in ROW.items()}
        table = pa.table(rows, demos._schema()).replace_schema_metadata({METADATA: said})
        parquet.write_table(table, tmp_path / "a.parquet")
        return tmp_path / "a.parquet"

    return write


@pytest.mark.parametrize(
    ("said", "message"),
    [(b"{", "a.parquet.*JSON"), (b"5", r"a\.parquet.*5.*object"), (b"{}", "format None")],
)
def test_damaged_metadata(written, said, message):
    with pytest.raises(DemosError, match=message):
        read_demos(written(said))


@pytest.mark.parametrize("column", ["action", "episode", "text"])
def test_an_empty_cell(written, column):
    whole = json.dumps({"format": FORMAT}).encode()
    assert [demo.action.tolist() for demo in read_demos(written(whole))[1]] == [[2]]
    with pytest.raises(DemosError, match=f"'{column}'"):
        list(read_demos(written(whole, **{column: None}))[1])
