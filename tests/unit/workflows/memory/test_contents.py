"""The checks of `tests.contents` on programs of a CPU, some of which have what they find."""

import json

import pytest

from llmrl_jax.workflows.memory import hlo
from llmrl_jax.workflows.memory.config import FitConfig
from llmrl_jax.workflows.memory.fit import fit
from tests.absent_reports import SHAPE
from tests.contents import decoding_loops, score_arrays, weight_copies


ROWS, LENGTH = 3, 24
MATRICES = 7
"""Of a layer."""


@pytest.fixture
def program(tmp_path):
    def of(workload, layers):
        (tmp_path / "config.json").write_text(json.dumps(SHAPE | {"num_hidden_layers": layers}))
        config = FitConfig(str(tmp_path), workload, batch_size=ROWS, length=LENGTH, new_tokens=8)
        return hlo.read(fit(config).program.as_text())

    return of


def test_decoding_copies_no_weight_that_has_an_array_of_its_layer(program):
    contents = program("generate", 2)
    assert decoding_loops(contents)
    assert weight_copies(contents, ROWS, 64 * 32) == []


def test_decoding_on_a_cpu_copies_weights_out_of_a_stack(program):
    copies = weight_copies(program("generate", 5), ROWS, 64 * 32)
    assert [k.times for k in copies] == MATRICES * [8 * 5]


def test_attention_on_a_cpu_keeps_its_scores(program):
    assert score_arrays(program("sft", 2), LENGTH)
