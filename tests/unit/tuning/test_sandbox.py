"""The bounds of templates: what grows without end is stopped, and everything else is rendered as Jinja does."""

from __future__ import annotations

import tracemalloc

import pytest
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llmrl_jax.tuning.template import ChatTemplate, TemplateError


HELLO = [{"role": "user", "content": "x"}]
DOUBLED = "{%% set ns = namespace(a=%s) %%}{%% for i in range(60) %%}{%% set ns.a = %s %%}{%% endfor %%}"


def text(source, messages=HELLO):
    return ChatTemplate(source, {}).render(messages)


@pytest.mark.parametrize(
    "source",
    [
        "{{ '%400000000d' % 1 }}",
        "{{ '%*d' % (400000000, 1) }}",
        "{{ '%(a).400000000f' % {'a': 1.5} }}",
        "{{ '%400000000d' | format(1) }}",
        "{{ '{:400000000d}'.format(1) }}",
        "{{ '{:{w}d}'.format(1, w=400000000) }}",
        "{{ '{a:400000000d}'.format_map({'a': 1}) }}",
        "{{ 'x'.center(400000000) }}",
        "{{ 'x' | center(400000000) }}",
        "{{ (1).to_bytes(400000000, 'big') }}",
        "{{ messages | tojson(indent=400000000) }}",
        "{% macro f() %}{% for i in range(90000) %}" + "x" * 1000 + "{% endfor %}{% endmacro %}{{ f() | length }}",
        "{% filter upper %}{{ 'x' * 40000 }}{{ 'x' * 40000 }}{% endfilter %}",
        "{% set x = 'x' * 40000 %}{% for i in range(90000) %}{% if x.upper() %}{% endif %}{% endfor %}",
        "{% set x = 'x' * 40000 %}{% for i in range(90000) %}{% if 'y' in x %}{% endif %}{% endfor %}",
        "{% set x = [1] * 900 %}{% set y = [1] * 900 %}{% for i in range(90000) %}{{ 'y' if x == y }}{% endfor %}",
        "".join(f"{{% set x{i} %}}{{{{ 'x' * 40000 }}}}{{% endset %}}" for i in range(25)),
        "".join(f"{{% set x{i} = 'x' * 40000 %}}" for i in range(45)),
        "{% set b = [1] * 3000 %}" + "".join(f"{{% set x{i} = b[1:] %}}" for i in range(20)),
    ],
)
def test_what_grows_without_end_is_stopped(source, monkeypatch):
    monkeypatch.setattr("llmrl_jax.tuning.sandbox.STEPS", 50_000)
    monkeypatch.setattr("llmrl_jax.tuning.sandbox.LENGTH", 50_000)
    template = ChatTemplate(source, {})
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError, match=r"end: .*\d,\d{3}"):
            template.render(HELLO)
        assert tracemalloc.get_traced_memory()[1] < 20e6, "stopped before it is made"
    finally:
        tracemalloc.stop()


def test_recursive_loops_are_counted(monkeypatch):
    monkeypatch.setattr("llmrl_jax.tuning.sandbox.STEPS", 20_000)
    with pytest.raises(TemplateError, match="20,000 iterations"):
        text("{% for x in [1] recursive %}{% if loop.depth < 40 %}{{ loop([x, x]) }}{% endif %}{% endfor %}")
    wide = "{% for x in [1] recursive %}{{ loop(range(30000)) if loop.depth < 2 }}{% endfor %}"
    with pytest.raises(TemplateError, match="20,000 iterations"):
        text(wide)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("[1]", "[ns.a, ns.a]"),
        ("(1,)", "(ns.a, ns.a)"),
        ("{}", "{'a': ns.a, 'b': ns.a}"),
        ("{}", "dict(a=ns.a, b=ns.a)"),
        ("{}", "{1: ns.a, 2: ns.a}.items()"),
        ("[1]", "[ns.a] + [ns.a]"),
        ("[1]", "[ns.a] * 2"),
        ("[1]", "[ns.a] | batch(1) | list + [ns.a] | batch(1) | list"),
    ],
)
@pytest.mark.parametrize("use", ["{{ ns.a }}", "{{ ns.a == ns.a }}", ""])
def test_containers_that_double_at_each_level_are_stopped(first, then, use):
    """Small in memory, for their parts are shared; to compare or write one would take 2^60 steps."""
    with pytest.raises(TemplateError, match="16,777,216 characters"):
        text(DOUBLED % (first, then) + use)


def test_what_may_change_later_is_not_written():
    """The list is counted while `n` is empty; as text, `n` shows nothing."""
    source = "{% set n = namespace() %}{% set l = [n, n] %}{% set n.a = 'x' * 1000 %}{{ l }}"
    assert text(source) == "[<Namespace>, <Namespace>]"


def test_arguments_stay_as_they_are():
    with pytest.raises(TemplateError, match="'update'"):
        text("{{ dict.update(messages[0], content='y') }}")


def test_everything_else_is_rendered_as_jinja_does():
    source = """
{%- set x %}a{{ 1 }}b{% endset %}{{ x }}{{ x | upper }}{% set y | trim %}  c  {% endset %}{{ y }}
{%- macro f(a, b=2) %}{{ a }}{{ varargs }}{{ kwargs }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, 3, 4, c=5) }}
{%- filter upper %}d{{ 'e' }}{% endfilter %}{% call(u) g() %}{{ u }}{% endcall %}
{%- for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% set p, q = 4, 5 %}{{ (q, p) }}
{{- [1, 'a', none, true, (2,), {'k': [3]}] }}{{ {'a': 1} == {'a': 1.0} }}{{ 1 < 2 <= 2 != 3 }}{{ 'a' in ['a'] }}
{{- x is defined }}{{ z is defined }}{{ x is string }}{{ 4 is divisibleby(2) }}{{ [1] is eq([1]) }}{{ none }}
{{- z | default('none') }}{{ z }}{{ [3, 1, 2] | sort | join('-') }}{{ 'abc'[1:] }}{{ [1, 2, 3][::-1] }}
{{- messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}{{ messages | length }}
{{- '%s is %05.1f%% of %(k)s' | replace('%(k)s', '%s') | format('a', 2.25, [1]) }}{{ '%(k)s' % {'k': 1} }}{{ 7 % 3 }}
{{- '{} {a:>5} {0[0]}'.format('bc', a=1) }}{{ '{a}'.format_map({'a': 2}) }}{{ '%d' % 1700000000000 }}
{%- for group in messages | groupby('role') %}{{ group.grouper }}{{ group.list | length }}{% endfor %}
{%- set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}
{{- messages[0] == messages[-1] }}{{ 'a' if messages[0] == messages[0] else 'b' }}{{ dict(a=1, **{'b': 2}) }}
{{- 'x'.center(5) }}{{ 'a,b'.split(',', 1) }}{{ ['a', 'b'] | map('upper') | join }}{{ cycler(1, 2).next() }}
"""
    source = source.replace("{% call(u)", "{% macro g() %}{{ caller(6) }}{% endmacro %}{% call(u)")
    said = [*HELLO, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}]
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    assert text(source, said) == plain.from_string(source).render(messages=said)


def test_json_is_that_of_transformers():
    values = [{"role": "user", "content": "é<>&'", "tools": [{"b": 1, "a": [None, True, 1.5]}]}]
    from transformers.utils.chat_template_utils import render_jinja_template

    source = (
        "{{ messages | tojson }}{{ messages | tojson(ensure_ascii=True) }}{{ messages | tojson(indent=2) }}"
        "{{ messages | tojson(sort_keys=true, separators=(',', ':')) }}{{ messages | tojson(false, 1) }}"
    )
    theirs, _ = render_jinja_template([values], chat_template=source)
    assert text(source, values) == theirs[0]


def test_long_conversations_fit():
    """A megabyte in a thousand messages, with what templates do for each of them."""
    source = (
        "{% for m in messages %}{% if loop.index0 == messages | length - 1 or m == messages[-1] %}last{% endif %}"
        "{% set c = m.content | trim %}{{ '<|' + m['role'] + '|>' ~ c }}{{ 't' if '</think>' in c }}{% endfor %}"
    )
    said = [{"role": "user", "content": "word " * 200}] * 999 + HELLO
    assert len(text(source, said)) == 999 * (len("<|user|>") + 999) + len("last<|user|>x")
