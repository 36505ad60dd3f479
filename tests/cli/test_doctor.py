from __future__ import annotations

import contextlib
import io
import json
import sys

import pytest

from envs_jax.extras import DISTRIBUTION
from llmrl_jax import __version__
from llmrl_jax.cli import main as cli
from llmrl_jax.cli.commands import doctor


CPU = [{"platform": "cpu", "kind": "cpu", "memory": None}]
GPUS = [{"platform": "gpu", "kind": "NVIDIA H100", "memory": 80 * 2**30}] * 8
TPUS = [{"platform": "tpu", "kind": "TPU v5 lite", "memory": 16 * 2**30}] * 4
NO_ACCELERATOR = {"driver": None, "tpus": 0, "plugins": {}, "settings": {}}
SOUND = {
    "devices": CPU,
    "accelerator": NO_ACCELERATOR,
    "versions": {"jax": "0.10.2", "jaxlib": "0.10.2", "mujoco": "3.3.0", "numba": "0.68.1"},
    "cache": {"folder": "/cache", "bytes": 0, "programs": 0, "writable": True},
    "disk": {"here": 2**40},
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The devices are not asked in another process."""
    monkeypatch.setenv("COLUMNS", "100")
    for name in (*doctor.SETTINGS, "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor, "version_of", lambda name: {"six": "1.17"}.get(name, ""))
    monkeypatch.setitem(doctor.LOOKS, "devices", lambda: GPUS)


def call(capsys, *args: str) -> tuple[int, str, str]:
    code = cli.main(["doctor", *args])
    return code, *capsys.readouterr()


def test_one_screen(capsys):
    code, out, err = call(capsys)
    assert code == 0 and err == "" and len(out.splitlines()) <= 30
    assert max(map(len, out.splitlines())) <= 100
    assert f"llmrl_jax {__version__}" in out and "8 x NVIDIA H100 (gpu, 80.0 GiB each)" in out
    assert [line.split()[0] for line in out.splitlines() if line[2] != " "][:8] == list(doctor.LOOKS)


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
    with pytest.raises(RuntimeError, match="within 0"):
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
            "packaged": {"smollm2-135m": "pip install a"},
            "encoders": {**found["encoders"], "all-minilm-l6-v2": ""},
        }
    )
    assert line.startswith("smollm2-135m (pip install a); in ") and line.endswith("hashed n-grams, all-minilm-l6-v2")
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


def trap_of(devices=CPU, jaxlib: str = "0.10.2", **accelerator) -> str:
    """The only trap of an accelerator; empty if there is none."""
    found = doctor.of_accelerators({**NO_ACCELERATOR, **accelerator}, devices, jaxlib)
    assert len(found) <= 1
    return found[0] if found else ""


def test_a_gpu_that_jax_does_not_see_names_what_is_missing(monkeypatch):
    monkeypatch.setattr(doctor.Path, "exists", lambda path: False)
    assert trap_of() == trap_of(GPUS, driver="580.1") == ""
    assert trap_of(driver="580.159.04").endswith("[cuda13]'")
    assert trap_of(driver="535.104.05").endswith("[cuda12]'")
    assert trap_of(driver="470.57.02").endswith("its driver 470.57.02 is older than 525: update it")
    newer = trap_of(driver="535.104.05", plugins={"jax-cuda13-plugin": "0.10.2"})
    assert "jax-cuda13-plugin needs a driver from 580 on" in newer and newer.endswith("[cuda12]'")
    both = {"jax-cuda12-plugin": "0.10.2", "jax-cuda13-plugin": "0.10.2"}
    assert "did not start" in trap_of(driver="535.104.05", plugins=both)
    assert "JAX_PLATFORMS=cpu hides" in trap_of(driver="580.1", settings={"JAX_PLATFORMS": "cpu"})
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/local/cuda/lib64")
    assert "LD_LIBRARY_PATH" in trap_of(driver="580.1", plugins={"jax-cuda13-plugin": "0.10.2"})
    assert trap_of(GPUS, driver="580.1", plugins={"jax-cuda13-plugin": "0.10.2"}) == ""
    monkeypatch.setattr(doctor.Path, "exists", lambda path: str(path) == "/dev/nvidia0")
    assert trap_of().endswith("[cuda13]'")
    (trap,) = doctor.traps(SOUND)
    assert trap == trap_of()


def test_plugins_and_settings_that_do_not_fit():
    assert trap_of(GPUS, plugins={"jax-cuda13-plugin": "0.10.1"}).endswith("[cuda13]'")
    assert trap_of(GPUS, plugins={"jax-cuda12-plugin": "0.10.1"}).endswith("[cuda12]'")
    assert trap_of(GPUS, plugins={"jax-cuda13-plugin": "0.10.2", "libtpu": "0.0.42.1"}) == ""
    older, newer = ({name: "0.9"} for name in reversed(doctor.FRACTIONS))
    assert trap_of(GPUS, settings=older) == trap_of(GPUS, settings=newer) == ""
    assert "both set" in trap_of(GPUS, settings=older | newer)


def test_tpus_that_jax_does_not_see(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.Path, "exists", lambda path: False)
    assert trap_of(tpus=4).startswith("4 TPUs are here") and trap_of(tpus=4).endswith("[tpu]'")
    assert "another process" in trap_of(tpus=4, plugins={"libtpu": "0.0.42.1"})
    assert trap_of(TPUS, tpus=4) == ""
    monkeypatch.setattr(doctor, "PCI", tmp_path)
    assert doctor.tpus() == 0
    # two TPUs, a network card of the same maker, and a disk
    for place, vendor, device in (
        ("0", "1ae0", "0063"),
        ("1", "1ae0", "0062"),
        ("2", "1ae0", "0042"),
        ("3", "8086", "0063"),
    ):
        (tmp_path / place).mkdir()
        (tmp_path / place / "vendor").write_text(f"0x{vendor}\n")
        (tmp_path / place / "device").write_text(f"0x{device}\n")
    assert doctor.tpus() == 2


def test_the_driver_is_read_from_the_kernel(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "DRIVER", tmp_path / "version")
    assert doctor.driver() is None
    for line, version in (
        ("NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", "535.104.05"),
        ("NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder)", "580.159.04"),
        ("NVIDIA UNIX Open Kernel Module for aarch64  550.54.15  Release Build", "550.54.15"),
    ):
        doctor.DRIVER.write_text(f"NVRM version: {line}\nGCC version:  gcc version 12.2.0\n")
        assert doctor.driver() == version
        assert doctor.accelerator() == {**NO_ACCELERATOR, "driver": version}


def test_accelerators_get_the_settings_that_they_want(monkeypatch, capsys):
    def hinted(devices, **settings: str) -> list[str]:
        return doctor.hints({**SOUND, "devices": devices, "accelerator": {**NO_ACCELERATOR, "settings": settings}})

    precision, memory, attention, mesh = hinted(GPUS)
    assert "cuDNN" in attention and "0.11.2" in attention
    assert "--dtype bfloat16" in precision and "TF32" in precision and "--mesh data=8" in mesh
    assert all(f"{name}=" in memory for name in (doctor.FRACTIONS[0], doctor.PREALLOCATE))
    assert hinted(GPUS[:1]) == [precision, memory, attention]
    for name in (*doctor.FRACTIONS, doctor.PREALLOCATE):
        assert hinted(GPUS[:1], **{name: "0.5"}) == [precision, attention]
    assert hinted(GPUS[:1], JAX_DEFAULT_MATMUL_PRECISION="highest") == [memory, attention]
    on_tpu = hinted(TPUS)
    assert len(on_tpu) == 3 and "rounded to bfloat16" in on_tpu[0] and "splash" in on_tpu[1]
    assert "--mesh data=4" in on_tpu[2]
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.9")
    out = call(capsys)[1]
    assert "accelerator XLA_CLIENT_MEM_FRACTION=0.9" in " ".join(out.split()) and "--mesh data=8" in out


def test_an_extra_of_a_plugin_lacks_the_plugin(monkeypatch):
    """`jax[cuda13]` is more than jax, which is always installed."""
    listed = {
        DISTRIBUTION: ['jax[cuda13]>=0.10; extra == "cuda13"', 'jax[tpu]>=0.10; extra == "tpu"'],
        "jax": [
            "numpy",
            'jax-cuda13-plugin[with-cuda]<=0.10.2,>=0.10.2; extra == "cuda13"',
            'jax-cuda12-plugin<=0.10.2; extra == "cuda12"',
            'libtpu==0.0.42.*; extra == "tpu"',
        ],
    }
    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda name: listed[name])
    installed = {"jax": "0.10.2", "libtpu": "0.0.42.1"}
    monkeypatch.setattr(doctor, "version_of", lambda name: installed.get(name, ""))
    assert doctor.extras() == {"cuda13": ["jax-cuda13-plugin<=0.10.2,>=0.10.2"], "tpu": []}


def test_large_pages_are_hinted_at_where_they_can_be_had(monkeypatch, tmp_path, capsys):
    pages = tmp_path / "enabled"
    pages.write_text("always [madvise] never\n")
    monkeypatch.setattr(doctor, "LARGE_PAGES", pages)
    monkeypatch.setattr(doctor, "PROCESSOR", tmp_path / "not Linux")
    monkeypatch.setattr(doctor.platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    (hint,) = doctor.hints(SOUND)
    assert hint.startswith("GLIBC_TUNABLES=glibc.malloc.hugetlb=1 before a command")
    assert hint not in doctor.hints({**SOUND, "devices": GPUS})
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
    assert "--dtype mixed" in hint and hint not in doctor.hints({**SOUND, "devices": GPUS})


def test_numba_is_hinted_at_where_mujoco_is_without_it(monkeypatch, tmp_path):
    for name in ("LARGE_PAGES", "PROCESSOR"):
        monkeypatch.setattr(doctor, name, tmp_path / "not Linux")
    facts = {**SOUND, "versions": {**SOUND["versions"], "mujoco": "3.3.0", "numba": ""}}
    (hint,) = doctor.hints(facts)
    assert hint.startswith("pip install numba: CLEVR-Robot")
    assert doctor.hints({**facts, "versions": {**facts["versions"], "numba": "0.68.1"}}) == []
