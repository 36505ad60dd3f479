from __future__ import annotations

import contextlib
import io
import json
import sys

import pytest

from llmrl_jax import __version__
from llmrl_jax.cli import main as cli
from llmrl_jax.cli.commands import doctor


CPU = [{"platform": "cpu", "kind": "cpu", "memory": None}]
GPUS = [{"platform": "gpu", "kind": "NVIDIA H100", "memory": 80 * 2**30}] * 8
SOUND = {
    "devices": CPU,
    "versions": {"jax": "0.10.2", "jaxlib": "0.10.2", "mujoco": "3.3.0", "numba": "0.68.1"},
    "cache": {"folder": "/cache", "bytes": 0, "programs": 0, "writable": True},
    "disk": {"here": 2**40},
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The devices are not asked in another process."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(doctor, "version_of", lambda name: {"six": "1.17"}.get(name, ""))
    monkeypatch.setitem(doctor.LOOKS, "devices", lambda: GPUS)


def call(capsys, *args: str) -> tuple[int, str, str]:
    code = cli.main(["doctor", *args])
    return code, *capsys.readouterr()


def test_one_screen(capsys):
    code, out, err = call(capsys)
    assert code == 0 and err == "" and len(out.splitlines()) <= 24
    assert max(map(len, out.splitlines())) <= 100
    assert f"llmrl_jax {__version__}" in out and "8 x NVIDIA H100 (gpu, 80.0 GiB each)" in out
    assert [line.split()[0] for line in out.splitlines() if line[2] != " "][:7] == list(doctor.LOOKS)


def test_json_has_the_same_facts_and_nothing_else(capsys):
    code, out, err = call(capsys, "--json")
    facts = json.loads(out)
    assert code == 0 and err == "" and list(facts) == [*doctor.LOOKS, "traps", "hints"]
    assert facts["machine"]["llmrl_jax"] == __version__ and facts["devices"] == GPUS
    assert doctor.report(facts).splitlines()[0] == doctor.report(doctor.examine()).splitlines()[0]


def test_it_never_fails(capsys, monkeypatch):
    def fails():
        raise OSError("this cannot be found out")

    for name in doctor.LOOKS:
        monkeypatch.setitem(doctor.LOOKS, name, fails)
    code, out, _ = call(capsys)
    assert code == 0 and out.count("not known: ") >= len(doctor.LOOKS)
    assert json.loads(call(capsys, "--json")[1])["disk"] == {"error": "OSError: this cannot be found out"}


def test_it_needs_no_jax(capsys, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] in ("jax", "jaxlib")]:
        monkeypatch.setitem(sys.modules, name, None)
    assert call(capsys)[0] == 0


def test_a_backend_that_aborts_its_process_is_named(capsys, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--no_such_flag")
    monkeypatch.setitem(doctor.LOOKS, "devices", doctor.devices)
    monkeypatch.setattr(doctor, "PROBE", "import os, sys; print('F: Unknown flag', file=sys.stderr); os.abort()")
    code, out, _ = call(capsys)
    assert code == 0 and "not known: RuntimeError: F: Unknown flag" in out
    assert "jax finds no device (with XLA_FLAGS=--no_such_flag)" in out


def test_a_backend_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(doctor, "PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "PATIENCE", 0.2)
    with pytest.raises(RuntimeError, match="no device within 0 s"):
        doctor.devices()


def test_the_probe_prints_the_devices_of_jax():
    import jax

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(doctor.PROBE, {})
    assert json.loads(out.getvalue()) == [{**CPU[0]} for _ in jax.local_devices()]


def test_extras_lack_what_is_not_installed_or_too_old(monkeypatch):
    needed = [
        "jax>=0.10",
        'six; extra == "control"',
        'brax>=2; extra == "control"',
        'openai>=2; extra == "api"',
        "old==1; python_version < '3' and extra == 'api'",
    ]
    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda name: needed)
    monkeypatch.setattr(
        doctor, "version_of", lambda name: {"six": "1.17", "brax": "1.9", "openai": "2.1"}.get(name, "")
    )
    missing = doctor.extras()
    assert missing == {"control": ["brax>=2"], "api": []}
    assert doctor._extras(missing) == "complete: api; incomplete: control (lacks brax>=2)"


def test_models_and_cache_are_listed(monkeypatch, tmp_path):
    for name in ("models--owner--small", "models--other--one", "datasets--x--y"):
        (tmp_path / "hub" / name).mkdir(parents=True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    found = doctor.models()
    assert found["hub"] == ["other/one", "owner/small"]
    assert set(found["packaged"]) == {"smollm2-135m"} and set(found["encoders"]) == {
        "hashed n-grams",
        "all-minilm-l6-v2",
    }
    line = doctor.LINES["models"](
        {
            **found,
            "packaged": {"smollm2-135m": "make smollm2"},
            "encoders": {**found["encoders"], "all-minilm-l6-v2": ""},
        }
    )
    assert line.startswith("smollm2-135m (make smollm2); in ") and line.endswith("hashed n-grams, all-minilm-l6-v2")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "jit_update-1a2b-cache").write_bytes(bytes(3000))
    (tmp_path / "cache" / "jit_update-1a2b-atime").write_bytes(bytes(8))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    assert doctor.cache() == {"folder": str(tmp_path / "cache"), "bytes": 3008, "programs": 1, "writable": True}
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    monkeypatch.setenv("LLMRL_COMPILATION_CACHE", "off")
    assert doctor._cache(doctor.cache()) == "off"


def test_traps(monkeypatch):
    monkeypatch.setattr(doctor.Path, "exists", lambda path: False)
    assert doctor.traps(SOUND) == []

    def only(text: str, **changes) -> None:
        (trap,) = doctor.traps({**SOUND, **changes})
        assert text in trap

    only("jax is not installed", versions={})
    only("jax 0.9.1 is not among the supported", versions={"jax": "0.9.1", "jaxlib": "0.9.1"})
    only("jaxlib 0.11.0 is newer than jax 0.10.2", versions={"jax": "0.10.2", "jaxlib": "0.11.0"})
    only("jax finds no device: see", devices={"error": "RuntimeError: no backend"})
    only("every process compiles again", cache={"folder": None, "bytes": 0, "programs": 0, "writable": False})
    only("1.0 GiB of disk are free", disk={"here": 2**30})
    monkeypatch.setattr(doctor, "version_of", lambda name: {"metaworld": "3.1.1"}.get(name, ""))
    only("gymnax imports six", versions={**SOUND["versions"], "gymnax": "1.0.1"})
    only("metaworld does not work with mujoco 3.17.0", versions={**SOUND["versions"], "mujoco": "3.17.0"})
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
    assert doctor.traps(SOUND) == []
    only("jaxlib aborts from 0.11 on", versions={"jax": "0.11.1", "jaxlib": "0.11.1"})
    monkeypatch.setattr(doctor.Path, "exists", lambda path: str(path) == "/dev/nvidia0")
    only('pip install "jax[cuda12]"')
    assert doctor.traps({**SOUND, "devices": GPUS}) == []


def test_large_pages_are_hinted_at_where_they_can_be_had(monkeypatch, tmp_path, capsys):
    pages = tmp_path / "enabled"
    pages.write_text("always [madvise] never\n")
    monkeypatch.setattr(doctor, "LARGE_PAGES", pages)
    monkeypatch.setattr(doctor, "PROCESSOR", tmp_path / "not Linux")
    monkeypatch.setattr(doctor.platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    (hint,) = doctor.hints(SOUND)
    assert hint.startswith("GLIBC_TUNABLES=glibc.malloc.hugetlb=1 before a command")
    assert doctor.hints({**SOUND, "devices": GPUS}) == []
    monkeypatch.setitem(doctor.LOOKS, "devices", lambda: CPU)
    assert "  hint      GLIBC_TUNABLES" in call(capsys)[1]
    monkeypatch.setattr(doctor.platform, "libc_ver", lambda: ("glibc", "2.34"))
    assert doctor.hints(SOUND) == []
    monkeypatch.setattr(doctor.platform, "libc_ver", lambda: ("glibc", "2.36"))
    pages.write_text("[always] madvise never\n")
    assert doctor.hints(SOUND) == []
    pages.write_text("always [madvise] never\n")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    assert doctor.hints(SOUND) == []


def test_mixed_precision_is_hinted_at_where_there_are_matrix_units_for_it(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "LARGE_PAGES", tmp_path / "not Linux")
    monkeypatch.setattr(doctor, "PROCESSOR", tmp_path / "cpuinfo")
    assert doctor.hints(SOUND) == []
    doctor.PROCESSOR.write_text("processor\t: 0\nflags\t\t: fpu avx512_bf16 amx_tile\nbugs\t\t: amx_bf16\n")
    assert doctor.hints(SOUND) == []
    doctor.PROCESSOR.write_text("processor\t: 0\nflags\t\t: fpu amx_bf16 amx_tile\nbugs\t\t:\n")
    (hint,) = doctor.hints(SOUND)
    assert "--dtype mixed" in hint and doctor.hints({**SOUND, "devices": GPUS}) == []


def test_numba_is_hinted_at_where_mujoco_is_without_it(monkeypatch, tmp_path):
    for name in ("LARGE_PAGES", "PROCESSOR"):
        monkeypatch.setattr(doctor, name, tmp_path / "not Linux")
    facts = {**SOUND, "versions": {**SOUND["versions"], "mujoco": "3.3.0", "numba": ""}}
    (hint,) = doctor.hints(facts)
    assert hint.startswith("pip install numba: CLEVR-Robot")
    assert doctor.hints({**facts, "versions": {**facts["versions"], "numba": "0.68.1"}}) == []
