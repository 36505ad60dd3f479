"""The memory of the machine, and of a container on it."""

from __future__ import annotations

import pytest

from llmrl_jax.parallel.memory import available


@pytest.mark.parametrize(
    ("texts", "limit"), [(("4096\n",), 4096), (("max\n",), None), (("max\n", "8192\n"), 8192), ((f"{2**63}\n",), None)]
)
def test_the_limit_of_a_container(texts, limit, tmp_path):
    files = [tmp_path / str(i) for i in range(2)]
    for file, text in zip(files, texts, strict=False):
        file.write_text(text)
    assert available(limits=files) == (limit or available(limits=()))
