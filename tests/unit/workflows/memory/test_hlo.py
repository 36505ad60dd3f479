"""The reader of HLO text on programs of a few lines, against numbers computed by hand."""

from llmrl_jax.workflows.memory.hlo import arrays, nbytes, read
from tests.hlo_texts import LOOP, REST, SLICES


STATED = LOOP.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"5"}}')


def product(text):
    return next(k for k in read(text).kernels if k.op == "dot")


def test_types():
    assert arrays("(bf16[2,<=3]{1,0:T(8,128)}, s32[])") == [("bf16", (2, 3), "{1,0:T(8,128)}"), ("s32", (), "")]
    assert nbytes("(bf16[2,3]{1,0}, f32[5]{0:S(1)}, u4[8])") == 12 + 20 + 4
    assert nbytes("(bf16[2,3]{1,0}, f32[5]{0:S(1)}, u4[8])", everywhere=False) == 12 + 4


def test_a_loop_runs_as_often_as_its_condition_says():
    kernel = product(LOOP)
    assert (kernel.times, kernel.loop, kernel.source) == (3, "while.7 x 3", "f/mul")
    assert kernel.flops == 2 * 4 * 16 * 8
    assert kernel.bytes == 4 * (4 * 8 + 8 * 16 + 4 * 16)
    assert read(LOOP).unknown == 0
    assert read(LOOP).arrays["f32[4,16]"] == (256, "f/mul")


def test_the_count_that_the_compiler_states_and_steps_of_two():
    assert product(STATED).times == 5
    assert product(LOOP.replace("constant(1)", "constant(2)")).times == 2  # 0 and 2 are below 3
    unknown = LOOP.replace("direction=LT", "direction=GT")
    assert (product(unknown).times, product(unknown).loop, read(unknown).unknown) == (1, "while.7 x ?", 1)


def test_the_limit_of_a_loop_may_be_in_a_fusion_or_an_element_of_its_start():
    fused = LOOP.replace(
        "  ROOT %less = pred[] compare(%j, %limit), direction=LT",
        "  ROOT %less = pred[] fusion(%j, %limit), kind=kLoop, calls=%compared",
    )
    inner = """%compared (c: s32[], d: s32[]) -> pred[] {
  %c = s32[] parameter(0)
  %d = s32[] parameter(1)
  ROOT %e = pred[] compare(%c, %d), direction=LT
}

"""
    assert product(fused.replace("%condition (q", inner + "%condition (q")).times == 3
    carried = LOOP.replace("%limit = s32[] constant(3)", "%limit = s32[] get-tuple-element(%q), index=3")
    carried = carried.replace("tuple(%zero, %a, %b)", "tuple(%zero, %a, %b, %four)")
    carried = carried.replace("%zero = s32[] constant(0)", "%zero = s32[] constant(0)\n  %four = s32[] constant(4)")
    assert product(carried).times == 4


def test_a_slice_and_an_update_in_place_count_their_part_only():
    first, second = read(SLICES).kernels
    row = 4 * 4 * 8
    # writes a row; reads one of the ten, the index, and nothing of an array in vector memory
    assert (first.bytes, first.cycles) == (row + row + 4, 700)
    assert (second.bytes, second.cycles) == (row + row + 4, None)
    whole = SLICES.replace("dynamic-slice(%p0, %p1, %z, %z), dynamic_slice_sizes={1,4,8}", "negate(%p0)")
    assert read(whole).kernels[0].bytes == row + 10 * row  # the index is not used then


def test_collectives_callbacks_and_products_of_other_kinds():
    contents = read(REST)
    gather, reduce = contents.collectives  # the same channel is the same exchange
    assert (gather.op, reduce.op, reduce.bytes) == ("all-gather", "all-reduce", 512)
    assert gather.bytes == (512 + 2048) / 2
    assert dict(contents.callbacks) == {"xla_ffi_python_gpu_callback": 1}
    assert dict(contents.wide) == {"f64": 1}
    flops = {k.name: k.flops for k in contents.kernels}
    assert flops["conv"] == flops["gemm"] == 2 * 16 * 8 * 5
    assert flops["conv2"] == 2 * 2 * 8 * 5 * (7 * 3 - 2)  # the two taps on padding do nothing


def test_the_alternatives_of_a_branch_run_equally_often():
    text = """HloModule m

%small (x: f32[4,8]) -> f32[4,8] {
  %x = f32[4,8]{1,0} parameter(0)
  ROOT %n = f32[4,8]{1,0} negate(%x)
}

%large (y: f32[4,8]) -> f32[4,8] {
  %y = f32[4,8]{1,0} parameter(0)
  %e = f32[4,8]{1,0} exponential(%y)
  ROOT %f = f32[4,8]{1,0} negate(%e)
}

ENTRY %main (i: s32[], a: f32[4,8]) -> f32[4,8] {
  %i = s32[] parameter(0)
  %a = f32[4,8]{1,0} parameter(1)
  ROOT %c = f32[4,8]{1,0} conditional(%i, %a, %a), branch_computations={%small, %large}
}
"""
    contents = read(text)
    assert {kernel.name: kernel.times for kernel in contents.kernels} == {"n": 0.5, "e": 0.5, "f": 0.5}
    assert contents.unknown == 1
