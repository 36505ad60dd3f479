"""A small Llama learns by GRPO to propose better policies for a task, in minutes on two cores.

The model starts from random weights. Its prior, a stand-in for pre-training, is imitation of the scripted adviser with
corrupted replies: in some a parameter is missing, outside the box, set twice, or the line is already in the history;
some of the others propose random policies within the box. So the model learns the format of an answer imperfectly, and
little about which policies are good. The rest is `llmrl props finetune`.

On 64 held-out prompts of Mountain Car (continuous), in 150 updates or 6 minutes on one busy core, the hard format rises
from 0.75 to 1.00, the policy's scaled return from 0.11 to 0.74 and the improvement from 0.05 to 0.47. It learns to
stand still, with a return of 0: a local optimum, since moving without reaching the goal costs reward.
`experiments/results/props_finetune/` has the log.

    python experiments/props_finetune.py --run.name props-finetune
    python experiments/props_finetune.py --run.resume runs/props-finetune
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from llmrl_jax.chat import Message
from llmrl_jax.core.files import replacing
from llmrl_jax.lm import FastTokenizer, Llama, LlamaConfig, LoRAConfig, lora, save_hf
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.flags import parse
from llmrl_jax.run.loop import train
from llmrl_jax.systems.props.adviser import PolicyAdviser
from llmrl_jax.systems.props.finetune import FinetuneConfig, Question, Setting, make_questions, make_settings
from llmrl_jax.systems.props.finetune_run import finetune
from llmrl_jax.systems.props.history import Format
from llmrl_jax.systems.props.settings import FinetuneRun
from llmrl_jax.tuning import GRPOConfig, SFTConfig, encode_row, make_sft, pack


EOS = "<eos>"
PRIOR = 0x5F7
"""Folded into the seed for the prior's own random policies."""


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
    hidden_size: int = 128
    layers: int = 3
    updates: int = 600
    sft: SFTConfig = field(default_factory=lambda: SFTConfig(batch_size=16, learning_rate=3e-3))


@dataclass(frozen=True)
class Experiment:
    """GRPO of a small Llama on one task."""

    data: FinetuneConfig = field(
        default_factory=lambda: FinetuneConfig(
            tasks=("mountain_car_continuous",), policies=1500, history=3, eval_prompts=64, explain=False
        )
    )
    prior: PriorConfig = field(default_factory=PriorConfig)
    updates: int = 150
    grpo: GRPOConfig = field(
        default_factory=lambda: GRPOConfig(prompts=8, group=8, max_new_tokens=48, learning_rate=1e-3)
    )
    run: RunConfig = field(default_factory=lambda: RunConfig(checkpoint_every=50, eval_every=50))


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
        form.params(rng.choice(question.shown).params).split("; "),
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


def main() -> None:
    x = parse(Experiment, description=__doc__)
    run = begun(x.run if x.run.name else replace(x.run, name="props-finetune"))
    model = make_prior(x.data, x.prior, run)
    adapters = LoRAConfig(rank=16, alpha=32.0, targets=lora.TARGETS)
    finetune(FinetuneRun(model=str(model), data=x.data, lora=adapters, updates=x.updates, grpo=x.grpo, run=run))


if __name__ == "__main__":
    main()
