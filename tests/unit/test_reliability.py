"""The program that tries kills, damage and requests can tell a broken promise from a kept one."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from experiments import reliability


def test_other_bits_are_seen():
    state, lines = {"w": np.float32([1, 2]), "key": np.uint32([7])}, [{"kind": "'train'", "loss": "0.5"}]
    assert reliability.same((state, lines), ({n: x.copy() for n, x in state.items()}, [dict(lines[0])]))
    assert not reliability.same((state, lines), ({**state, "w": np.nextafter(state["w"], 9)}, lines))
    assert not reliability.same((state, lines), ({"w": state["w"]}, lines))
    assert not reliability.same((state, lines), (state, [{**lines[0], "loss": "0.25"}]))


def test_requests_are_those_of_their_seed_and_of_every_kind():
    first, again = ([reliability._request(rng) for _ in range(300)] for rng in (random.Random(3), random.Random(3)))
    assert first == again
    bodies = [body for _, body in first]
    assert {path for path, _ in first} == {"/v1/completions", "/v1/chat/completions", "/v1/score"}
    assert sum(isinstance(body, bytes) for body in bodies) > 10
    changed = {name for body in bodies if isinstance(body, dict) for name in body}
    assert changed >= set(reliability.FIELDS) - {"stream"}
    assert all(json.dumps(body) for body in bodies if isinstance(body, dict))


@pytest.mark.slow
@pytest.mark.parametrize("part, trials", [("kills", 2), ("damage", 4), ("requests", 60)])
def test_a_part(part, trials, tmp_path):
    assert reliability.main(part, trials, out=tmp_path) == 0
    result = json.loads((tmp_path / f"{part}.json").read_text())
    counted = result["outcomes"]["kills"] if part == "kills" else sum(result["outcomes"].values())
    assert counted >= trials and not result["violations"]
