"""A small Llama learns by GRPO to propose better policies for a task, in minutes on two cores.

The model starts from random weights. Its prior, a stand-in for pre-training, is imitation of the scripted adviser with
corrupted replies: in some a parameter is missing, outside the box, set twice, or the line is already in the history;
some of the others propose random policies within the box. So the model learns the format of an answer imperfectly, and
little about which policies are good. The rest is `llmrl props finetune`. At the end `policies.json` compares, in fresh
episodes, the mean returns of what the prior and the tuned model propose on held-out prompts with those of the policies
shown there and of simple policies.

There are two experiments: `nim`, the default, and `mountain-car`. `docs/systems/props-results.md` has their results,
`experiments/results/props_finetune/` the logs.

    python experiments/props_finetune.py nim --run.name nim-0
    python experiments/props_finetune.py nim --run.name nim-0 --run.resume
    python experiments/props_finetune.py mountain-car --run.name car-0
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from llmrl_jax.agents.population import episode_keys
from llmrl_jax.chat import Message
from llmrl_jax.core.files import replacing, write_whole
from llmrl_jax.lm import (
    FastTokenizer,
    Llama,
    LlamaConfig,
    LoRAConfig,
    SamplingConfig,
    generate,
    load,
    load_adapter,
    lora,
    save_hf,
)
from llmrl_jax.lm.tokens import load_tokenizer
from llmrl_jax.options.command import parse
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.loop import train
from llmrl_jax.systems.props.config import FinetuneConfig, FinetuneRun
from llmrl_jax.systems.props.finetune import (
    DATA,
    Question,
    Setting,
    encode_question,
    finetune,
    make_questions,
    make_settings,
    read_answer,
)
from llmrl_jax.systems.props.policies import Policy
from llmrl_jax.systems.props.prompts import Format
from llmrl_jax.systems.props.proposals import Grammar, parse as parse_reply
from llmrl_jax.systems.props.scripted import PolicyAdviser
from llmrl_jax.tuning import GRPOConfig, SFTConfig, encode_row, make_sft, pack, pad_prompts


EOS = "<eos>"
PRIOR = 0x5F7
"""Folded into the seed for the prior's own random policies."""
COMPARED = 0xC0DE
"""Folded into the seed for the replies and the episodes of the comparison."""
FRESH = 100
"""Episodes per policy in the comparison."""


@dataclass(frozen=True)
class PriorConfig:
    """The model and its imitation data."""

    prompts: int = 1500
    """Number of questions per task, with one reply each."""
    poor: float = 0.7
    """Fraction of replies with a random policy within the box."""
    malformed: float = 0.3
    """Fraction of corrupted replies."""
    vocabulary: int = 1024
    """Maximum number of tokens. With 512 a prompt is three times as long."""
    hidden_size: int = 128
    layers: int = 3
    updates: int = 600
    sft: SFTConfig = field(default_factory=lambda: SFTConfig(batch_size=16, learning_rate=3e-3))


@dataclass(frozen=True)
class Experiment:
    """GRPO of a small Llama on one task. The defaults are Nim's."""

    data: FinetuneConfig = field(
        default_factory=lambda: FinetuneConfig(
            tasks=("nim",), policies=1200, history=2, eval_prompts=64, explain=False, format_weight=0.1
        )
    )
    prior: PriorConfig = field(
        default_factory=lambda: PriorConfig(
            malformed=0.1, hidden_size=96, layers=2, updates=400, sft=SFTConfig(batch_size=16, learning_rate=4e-3)
        )
    )
    updates: int = 150
    grpo: GRPOConfig = field(
        default_factory=lambda: GRPOConfig(
            prompts=4, group=16, max_new_tokens=56, entropy_coef=0.01, learning_rate=1e-3
        )
    )
    run: RunConfig = field(default_factory=lambda: RunConfig(checkpoint_every=50, eval_every=50))


NIM = Experiment()
MOUNTAIN_CAR = replace(
    NIM,
    data=replace(NIM.data, tasks=("mountain_car_continuous",), policies=1500, history=3, format_weight=1.0),
    prior=PriorConfig(),
    grpo=GRPOConfig(prompts=8, group=8, max_new_tokens=48, learning_rate=1e-3),
)
EXPERIMENTS: Mapping[str, Experiment] = {"nim": NIM, "mountain-car": MOUNTAIN_CAR}


def reply(question: Question, setting: Setting, prior: PriorConfig, rng: random.Random) -> str:
    """The reply of the scripted adviser, possibly replaced or corrupted."""
    policy, form = setting.policy, Format()
    line = PolicyAdviser().advise([Message("user", question.text)], rng).splitlines()[0]
    parts = line.split("; ")
    if rng.random() < prior.poor:
        drawn = (round(rng.uniform(policy.low, policy.high), policy.decimals) for _ in parts)
        parts = form.params(list(drawn)).split("; ")
    if rng.random() >= prior.malformed:
        return "; ".join(parts)
    place = rng.randrange(len(parts))
    name, value = parts[place].split(": ")
    spoiled = (
        [*parts[:place], *parts[place + 1 :]],
        [*parts[:place], f"{name}: {form.number(float(value) + 2 * policy.high)}", *parts[place + 1 :]],
        [*parts, parts[place]],
        form.params(rng.choice(question.rows).params).split("; "),
    )
    return "; ".join(rng.choice(spoiled))


def train_tokenizer(texts: Sequence[str], size: int) -> FastTokenizer:
    """A byte-level BPE that splits only digits, so that the text common to all prompts becomes few tokens."""
    backend = tokenizers.Tokenizer(models.BPE())
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), cut])
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[EOS], initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(texts, trainer)
    return FastTokenizer(backend, eos_token=EOS)


def make_prior(data: FinetuneConfig, prior: PriorConfig, run: RunConfig) -> Path:
    """Create the model in `<out>/<name>-prior/model`, unless it exists. **Returns:** that folder."""
    folder = Path(run.out).expanduser() / f"{run.name}-prior"
    if (folder / "model" / "tokenizer.json").exists():
        return folder / "model"
    key = jax.random.fold_in(jax.random.key(run.seed), PRIOR)
    # a fifth of the prompts is held out, and not used here
    asked = replace(data, policies=prior.prompts * data.history * 5 // 4 + 5 * data.history, held_out_tasks=())
    settings = make_settings(asked, key)
    questions, _ = make_questions(asked, settings)
    rng = random.Random(run.seed)
    replies = [reply(question, settings[question.setting], prior, rng) for question in questions]
    tokenizer = train_tokenizer([q.text + r for q, r in zip(questions[::10], replies[::10])], prior.vocabulary)
    rows = [{"prompt": q.text, "response": r} for q, r in zip(questions, replies)]
    examples = [encode_row(row, f"reply {i}", tokenizer) for i, row in enumerate(rows)]
    longest = max(len(example.tokens) for example in examples)
    config = LlamaConfig(
        tokenizer.vocab_size,
        prior.hidden_size,
        3 * prior.hidden_size,
        prior.layers,
        4,
        max_position_embeddings=2 * longest,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_id,
    )
    model = Llama(config)
    variables = dict(jax.jit(model.init)(jax.random.fold_in(key, 1), jnp.zeros((1, 1), jnp.int32)))
    print(f"prior: {len(examples)} replies, of {longest} tokens with their prompts; {config.matmul_params} weights")
    packed = pack(examples, longest, several=False)
    learner = make_sft(prior.sft, model, variables, packed, prior.updates, take=True)
    kept = RunConfig(name=folder.name, out=run.out, seed=run.seed, log_every=10, checkpoint_every=0)
    again = f"the same command continues with --run.name {run.name} --run.resume"
    result = train(
        learner,
        replace(kept, progress=run.progress, resume=(folder / "config.json").exists()),
        num_updates=prior.updates,
        command="prior",
        shown={"loss": "loss"},
        again=again,
    )
    if result.stopped:
        print(f"Stopped in the prior: {again}.")
        raise SystemExit(0)
    with replacing(folder / "model") as draft:
        save_hf(draft, config, result.state.params)
        tokenizer.save(draft)
    return folder / "model"


def begun(run: RunConfig) -> RunConfig:
    """Run settings for `--run.resume`: a run that ended during training of its prior has nothing else to resume yet."""
    out = Path(run.out).expanduser()
    own, prior = ((out / name / "config.json").exists() for name in (run.name, f"{run.name}-prior"))
    return replace(run, resume=False, resume_from=-1) if run.resume and prior and not own else run


def proposals(
    config: FinetuneRun, setting: Setting, questions: Sequence[Question], model: Llama, variables: Any
) -> list[tuple[float, ...]]:
    """One sampled reply to each question. **Returns:** the parameters of those in the hard format."""
    tokenizer = load_tokenizer(Path(config.model))
    asked = pad_prompts([encode_question(config.data, q, tokenizer, None) for q in questions], tokenizer.pad_id)
    sampling = SamplingConfig(config.grpo.max_new_tokens, config.grpo.temperature)
    key = jax.random.fold_in(jax.random.key(config.run.seed), COMPARED)
    found = generate(model, variables, jnp.asarray(asked.tokens), jnp.asarray(asked.lengths), key, sampling)
    texts = [row[0] for row in found.texts(tokenizer, start=True)]
    read = [read_answer(config.data, text, question, setting.policy) for text, question in zip(texts, questions)]
    return [params for _, hard, params in read if hard]


def simple_policies(policy: Policy) -> dict[str, list[tuple[float, ...]]]:
    """Policies that ignore the observation: each action of a discrete space; without and with full thrust else."""
    count, actions = policy.num_params, policy.act_size
    if policy.kind == "table":
        return {f"always action {a}": [(float(a),) * count] for a in range(actions)}
    still = (0.0,) * count
    if policy.discrete:
        return {f"always action {a}": [(*still[actions:], *np.eye(actions)[a].tolist())] for a in range(actions)}
    thrust = {"standing still": 0.0, "constant action -1": -1.0, "constant action 1": 1.0}
    return {name: [(*still[actions:], *(value,) * actions)] for name, value in thrust.items()}


def compare(config: FinetuneRun, folder: Path) -> dict[str, dict[str, float]]:
    """Mean returns on the held-out prompts, all in the same fresh episodes.

    **Arguments:** `config` and `folder`, of a finished run. **Returns:** for each way to choose policies the number of
    replies `valid` and of `distinct` policies, the `mean` of their returns, its standard error, the smallest and the
    largest. Invalid replies do not count in the mean. `best shown` is the best policy of each prompt, `best drawn` the
    best of all random policies of the run, both chosen by the returns that prompts show.
    """
    data_key = jax.random.split(jax.random.fold_in(jax.random.key(config.run.seed), DATA), 3)[0]
    settings = make_settings(config.data, data_key)
    setting, questions = settings[0], make_questions(config.data, settings)[1]
    model, variables = load(config.model)
    tuned, adapted = load_adapter(folder / "adapter", model, variables)
    rng = random.Random(config.run.seed)
    honest = PriorConfig(poor=0.0, malformed=0.0)
    advised = [
        parse_reply(reply(q, setting, honest, rng), Grammar.for_policy(setting.policy)).proposals for q in questions
    ]
    chosen = {
        "prior": proposals(config, setting, questions, model, variables),
        "tuned": proposals(config, setting, questions, tuned, adapted),
        "scripted adviser": [found[0] for found in advised if found],
        "best shown": [max(q.rows, key=lambda row: row.value).params for q in questions],
        "random": [row.params for q in questions for row in q.rows],
        "best drawn": [max(setting.rows, key=lambda row: row.value).params],
        **simple_policies(setting.policy),
    }
    keys = episode_keys(jax.random.fold_in(jax.random.key(config.run.seed), COMPARED), FRESH)
    table = {}
    for name, policies in chosen.items():
        found: dict[str, float] = {"valid": len(policies), "distinct": len(set(policies))}
        if policies:
            values = np.asarray(setting.evaluate(jnp.asarray(policies, jnp.float32), keys).mean, np.float64)
            found |= {"mean": values.mean(), "lowest": values.min(), "highest": values.max()}
            if len(policies) > 1:
                found["standard_error"] = values.std(ddof=1) / len(policies) ** 0.5
        table[name] = {key: round(float(value), 3) for key, value in found.items()}
    return table


def main() -> None:
    args = sys.argv[1:]
    name = args.pop(0) if args and not args[0].startswith("-") else "nim"
    if name not in EXPERIMENTS:
        raise SystemExit(f"there is no experiment {name!r}; it is one of {', '.join(EXPERIMENTS)}")
    x = parse(Experiment, description=__doc__, args=args, default=EXPERIMENTS[name])
    run = begun(x.run if x.run.name else replace(x.run, name=f"props-finetune-{name}"))
    model = make_prior(x.data, x.prior, run)
    adapters = LoRAConfig(rank=16, alpha=32.0, targets=lora.TARGETS)
    config = FinetuneRun(model=str(model), data=x.data, lora=adapters, updates=x.updates, grpo=x.grpo, run=run)
    folder = finetune(config)
    if json.loads((folder / "summary.json").read_text())["stopped"]:
        return
    table = compare(config, folder)
    write_whole(folder / "policies.json", json.dumps(table, indent=2) + "\n")
    for title, found in table.items():
        print(f"{title}: {found['valid']:g} valid, mean return {found.get('mean', float('nan')):.3f}")


if __name__ == "__main__":
    main()
