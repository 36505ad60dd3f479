"""GLAM's settings: the contents of config.json, the flags of the commands, and the presets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from llmrl_jax.agents.drrn import DRRN_DQN, DRRNConfig
from llmrl_jax.agents.language import Scoring
from llmrl_jax.core.checks import (
    Checked,
    Epochs,
    FractionBelowOne,
    In,
    Needs,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Steps,
    Width,
    check_seed,
    nearest,
)
from llmrl_jax.core.config import FREE, to_json
from llmrl_jax.kernels.attention import Attention
from llmrl_jax.lm import LoRAConfig
from llmrl_jax.lm.config import ComputeDtype
from llmrl_jax.lm.small import EMBEDDED, SmallConfig
from llmrl_jax.rl.dqn import DQNConfig
from llmrl_jax.rl.ppo import GLAM as GLAM_PPO, PPOConfig
from llmrl_jax.run.config import RunConfig
from llmrl_jax.systems.glam.symbolic import SymbolicConfig
from llmrl_jax.tuning import SFTConfig


AgentName = Literal["llm", "symbolic", "drrn", "random", "bot"]
"""The kind of agent.

* `llm`: the language model, trained by PPO; GLAM's own agent.
* `symbolic`: Symbolic-PPO, a recurrent network that observes the grid directly.
* `drrn`: DRRN, Q-learning on the same text.
* `random`: uniformly random actions; does not learn.
* `bot`: BabyAI's bot, which plans from the part of the grid it has seen; does not learn.
"""


@dataclass(frozen=True)
class EmbeddedConfig(SmallConfig):
    """The small Llama created by `--model embedded`; its tokenizer has one token per word of the prompt."""

    spare_words: Annotated[int, In("[0, 1048576]")] = 0
    """Tokens to which words unseen in training prompts are hashed; also doubles the maximum prompt length. 0: unseen
    words are an error."""


def _with_dqn(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Upgrade an old config.json, in which `drrn` holds the learner's settings as well as the network's sizes."""
    sizes = {f.name for f in fields(DRRNConfig)}
    settings = values.get("drrn", {})
    learner = {name: value for name, value in settings.items() if name not in sizes}
    if not learner or "dqn" in values:
        return values
    sized = {name: value for name, value in settings.items() if name in sizes}
    return {**values, "drrn": sized, "dqn": {**to_json(DRRN_DQN), **learner}}


@dataclass(frozen=True)
class GlamConfig(Checked):
    """Environment, agent, model and learner."""

    upgraded = staticmethod(_with_dqn)

    agent: AgentName = "llm"
    """The agent to train: `llm` (the language model) or a baseline, `symbolic` (Symbolic-PPO) or `drrn`. Changing a
    setting that the agent does not read is an error."""
    env: str = "BabyAI-Text/MixedTrainLocal-v0"
    """Environment id, one of `llmrl envs list BabyAI-Text`."""
    model: str = EMBEDDED
    """A Hugging Face folder or hub id, a GGUF file, smollm2-135m (`llmrl doctor` says how to get it), or
    `embedded`: a small Llama with random weights."""
    embedded: EmbeddedConfig = field(default_factory=EmbeddedConfig)
    """Sizes of the `embedded` model."""
    init: Literal["pretrained", "random", "embeddings"] = "pretrained"
    """Initial base weights: `pretrained`, the model's own; `random`, randomly initialised; `embeddings`, random except
    for the model's token embeddings (the ablations NPA and NPAE; with scoring, NPE)."""
    policy: Literal["scoring", "heads"] = "scoring"
    """How actions are chosen: `scoring`, by the probabilities of the action strings; `heads`, by an MLP over the
    prompt's hidden state with one logit per action (the ablations AFlan, NPAE and NPA)."""
    tune: Literal["lora", "full"] = "lora"
    """`full`: train all weights, as in the paper; `lora`: train adapters on a frozen base, which needs a learning rate
    about 100 times as large."""
    lora: LoRAConfig = field(default_factory=LoRAConfig)
    """The adapters, if `tune` is `lora`."""
    quantize: Literal["none", "int8", "nf4"] = "none"
    """Quantise the frozen base's matrices to 8.5 (int8) or 4.5 (nf4) bits per weight; requires `tune` to be `lora`."""
    num_actions: PositiveInt = 6
    """Number of available actions, in the environment's canonical order: 3, 6 or 9 in the paper. The last three of nine
    have no effect ("sleep", "do nothing", "think")."""
    history: Annotated[int, In("[1, 256]")] = 3
    """Number of observations in the prompt, with the actions between them."""
    list_actions: bool = True
    """Whether the prompt begins with the list of possible actions."""
    max_prompt: NonNegativeInt = 0
    """Maximum prompt length in tokens; it is an error if the longest possible prompt exceeds it. 0: as long as needed,
    up to the model's maximum length."""
    candidate_space: Literal["healed", "separate"] = "healed"
    """Tokenisation of the space between prompt and action: `healed`, as part of the action, as tokenizers expect;
    `separate`, as part of the prompt, with the action tokenised separately (compatible with the released code)."""
    scoring: Annotated[Scoring, Needs("policy", "scoring")] = "sum"
    """How scores become action logits: `sum` of token log-probabilities, `mean` per token, `per_word`, or the released
    code's `raw_logits` or `max_normalised`."""
    value_width: Width = 1024
    """Width of the two hidden layers of the value head, and of the action head if used."""
    value_activation: Literal["sigmoid", "relu", "tanh"] = "sigmoid"
    """Activation function of these heads: `sigmoid` is GLAM's; `relu` learns faster."""
    stop_value_gradient: bool = False
    """Stop the critic's gradient at the language model."""
    competence_coef: NonNegativeFloat = 0.0
    """Loss coefficient of a head that predicts from each prompt whether the goal will be reached; 0: no such head."""
    stop_competence_gradient: Annotated[bool, Needs("competence_coef")] = False
    """Stop the competence head's gradient at the language model."""
    reward_scale: PositiveFloat = 20.0
    """Factor applied to the environment's reward before learning."""
    dtype: ComputeDtype = "float32"
    """Compute dtype of the model; trained weights, log-probabilities and losses are always float32. `mixed`: float32,
    with the factors of products with weights rounded to bfloat16."""
    score_rows: NonNegativeInt = 0
    """Number of prompts scored at once, if it divides the batch. On a CPU, groups of 16 fit into the cache and run
    twice as fast. 0: all with one length; with several, a size that suits play and learning."""
    score_widths: Annotated[int, In("[0, 64]")] = 0
    """Number of padded lengths, evenly spaced up to the longest prompt. Prompts are sorted by length, and each group of
    `score_rows` uses the shortest length that fits it. More lengths: less computation on padding, longer
    compilation. If microbatches (`ppo.microbatches`) have at most `score_rows` prompts, they are sorted by length
    instead, and the gradient does not repeat the forward pass; with `score_rows` 0, microbatches are groups of that
    size. 1: all prompts have the longest length. 0: by device, 1 on a CPU and for small models, else 4."""
    remat: bool = False
    """Recompute activations in the backward pass: slower, but uses far less memory."""
    attention: Attention = "auto"
    """How attention is computed: `auto` takes cuDNN's kernel on GPUs and splash attention on TPUs where they can, else
    `recomputed` scores, and on a CPU `saved` ones."""
    mesh: str = field(default="", metadata=FREE)
    """Device mesh, e.g. `data=4,fsdp=2`: environments are sharded over `data`, weights over `fsdp` and `tensor`. Empty:
    one device."""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """The learner of the agents `llm` and `symbolic`."""
    symbolic: SymbolicConfig = field(default_factory=SymbolicConfig)
    """The network of the agent `symbolic`."""
    drrn: DRRNConfig = field(default_factory=DRRNConfig)
    """The network of the agent `drrn`."""
    dqn: DQNConfig = field(default_factory=lambda: DRRN_DQN)
    """The learner of the agent `drrn`."""

    def __post_init__(self):
        super().__post_init__()
        if self.quantize != "none" and self.tune == "full":
            raise ValueError(
                f"quantize is {self.quantize}, which freezes the base: take --tune lora, or leave --quantize out"
            )


@dataclass(frozen=True)
class CloningConfig(Checked):
    """Selection of demonstrated steps, and training on them."""

    pairs: PositiveInt = 400_000
    """Number of training steps, taken from the start of the demonstrations and excluding held-out steps; all if there
    are fewer."""
    held_out: FractionBelowOne = 0.05
    """Fraction of the episodes, the last ones, that are held out to measure the loss."""
    epochs: Epochs = 1.0
    """Passes over the training steps."""
    length: NonNegativeInt = 0
    """Tokens per row of a batch; 0: the length of the longest step."""
    pack: bool = True
    """Pack several steps into a row; they do not attend to each other."""
    end: bool = True
    """Also train on the end-of-sequence token after the action, if the tokenizer has one."""
    sft: SFTConfig = field(default_factory=SFTConfig)
    """The learner."""

    @property
    def read(self) -> int:
        """Number of steps to play or read, including held-out ones."""
        return math.ceil(self.pairs / (1 - self.held_out))


# --- presets ----------------------------------------------------------------------------------------------------------

GLAM = GlamConfig(tune="full", ppo=GLAM_PPO)
"""The published values, except for the differences listed in `docs/systems/glam.md`: all weights, by Adam at 1e-6."""

GLAM_LORA = replace(GLAM, tune="lora", ppo=replace(GLAM_PPO, learning_rate=1e-4))
"""The same with adapters, which 1e-6 would hardly move; the paper does not train any."""

GLAM_CODE = replace(
    GLAM,
    scoring="raw_logits",
    candidate_space="separate",
    ppo=replace(GLAM_PPO, value_broadcast="glam", bootstrap_truncation=False),
)
"""The released code, quirks included (`train_language_agent.py`)."""

NPE = replace(GLAM, init="embeddings")
AFLAN = replace(GLAM, policy="heads")
NPAE = replace(AFLAN, init="embeddings")
NPA = replace(AFLAN, init="random")
"""The ablations, by the paper's names (2302.02662): no pretraining except for the embeddings (NPE), an
action head (AFlan), both (NPAE), and an action head without any pretraining (NPA). Each needs a model."""

SYMBOLIC = GlamConfig(
    agent="symbolic",
    ppo=PPOConfig(
        num_envs=64,
        num_steps=40,
        epochs=4,
        minibatches=2,
        gamma=0.99,
        gae_lambda=0.99,
        learning_rate=1e-4,
        normalize_advantages=False,
    ),
)
"""Symbolic-PPO's published values (`train_symbolic_ppo.py`): 2,560 steps per update, in minibatches of
1,280; `llmrl_jax.systems.glam.symbolic` lists the differences in the network."""

DRRN = GlamConfig(agent="drrn", dqn=DRRN_DQN)
"""DRRN's published values (`agents/drrn`)."""

DEMO = GlamConfig(
    env="BabyAI-Text/GoToLocalS6N2-v0",
    history=1,
    list_actions=False,
    value_width=64,
    value_activation="relu",
    reward_scale=1.0,
    score_rows=32,
    score_widths=1,
    lora=LoRAConfig(
        rank=8, alpha=16.0, targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    ),
    ppo=PPOConfig(
        num_envs=64,
        num_steps=32,
        epochs=2,
        minibatches=16,
        microbatches=4,
        learning_rate=1e-3,
        gamma=0.97,
        gae_lambda=0.95,
        entropy_coef=0.01,
        normalize_advantages=True,
    ),
)
"""The smallest setting in which RL visibly improves a language model on two cores: one observation in the prompt and no
list of actions, since prompt length dominates the cost of a small model. `llmrl glam demo` adds what `demo` says."""

DEMO_STEPS = 60 * 64 * 32
"""Number of environment steps of PPO in the demo."""

PRESETS: dict[str, GlamConfig] = {
    "glam": GLAM,
    "glam-lora": GLAM_LORA,
    "glam-code": GLAM_CODE,
    "demo": DEMO,
    "aflan": AFLAN,
    "npae": NPAE,
    "npa": NPA,
    "npe": NPE,
    "symbolic": SYMBOLIC,
    "drrn": DRRN,
}

OF_TUNING = {"full": "glam", "lora": "glam-lora"}
"""The published values for each kind of tuning, whose learning rates differ."""

OF_AGENT = {"llm": "glam", "symbolic": "symbolic", "drrn": "drrn"}
"""The default preset of each agent."""


BC = CloningConfig(
    pack=False,
    sft=SFTConfig(batch_size=64, learning_rate=5e-4, warmup=0.01, adam_eps=1e-8, max_grad_norm=math.inf),
)
"""The published values (`clm_behavioral-cloning.py`): one pass over 400,000 steps, batches of 64, AdamW at 5e-4 without
weight decay, a cosine schedule after 1% of warm-up; gradient clipping is not documented."""

CLONE_PRESETS: dict[str, tuple[GlamConfig, CloningConfig]] = {
    "bc": (GLAM, BC),
    "bc-lora": (replace(GLAM, tune="lora"), BC),
    "bc-demo": (
        replace(DEMO, tune="full"),
        CloningConfig(pairs=20_000, epochs=2.0, sft=SFTConfig(batch_size=32, learning_rate=3e-3, warmup=0.1)),
    ),
}
"""Presets of cloning: as published, with all weights trained; the same with adapters; and one that takes a minute on
two cores, with the demo's small Llama, level and short prompts."""


def preset(name: str, presets: Mapping[str, Any] = PRESETS) -> Any:
    """A preset by its name. **Arguments:** `presets`, `PRESETS` or `CLONE_PRESETS`.

    **Raises:** `KeyError`, with the nearest name, for an unknown one.
    """
    if name not in presets:
        raise KeyError(f"there is no preset {name!r}{nearest(name, list(presets))} (there are {', '.join(presets)})")
    return presets[name]


# --- runs -------------------------------------------------------------------------------------------------------------


def _without_preset(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Upgrade an old config.json, which also holds the name of the preset: drop it."""
    return {name: value for name, value in values.items() if name != "preset"}


@dataclass(frozen=True)
class TrainConfig(Checked):
    """A GLAM training run. `preset(name)` gives values for `glam`."""

    KIND: ClassVar[str] = "glam train"
    upgraded = staticmethod(_without_preset)

    glam: Annotated[GlamConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: GLAM)
    steps: Steps = field(default=1_500_000, metadata=FREE)
    """Total environment steps over all environments, rounded up to whole updates."""
    eval_episodes: PositiveInt = field(default=200, metadata=FREE)
    """Held-out episodes per evaluation during training (see `run.eval_every`)."""
    seeds: PositiveInt = 1
    """Seeds that learn in one program: `run.seed`, `run.seed` + 1, ... Results are means with intervals over them, and
    metrics with the number of a run as prefix, `0/loss`, its own. Steps are those of each."""
    run: RunConfig = field(default_factory=RunConfig)

    def experiment(self) -> Any:
        """The learner of the run and its evaluation: an `llmrl_jax.workflows.experiment.Experiment`."""
        from llmrl_jax.systems.glam.train import make

        return make(self)


@dataclass(frozen=True)
class CloneRun(Checked):
    """A behaviour-cloning run: the demonstrator, the environment and the model. `CLONE_PRESETS` has values for
    `glam` and `clone`."""

    KIND: ClassVar[str] = "glam clone"
    upgraded = staticmethod(_without_preset)

    glam: Annotated[GlamConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: GLAM)
    demos: str = ""
    """File of demonstrations, written by `llmrl envs demos`; empty: the bot, or the agent of `--from`, generates them,
    and they are saved as `demos.parquet`."""
    from_run: Annotated[str, tyro.conf.arg(name="from")] = ""
    """Folder of a run of `llmrl glam train`, whose agent's successful episodes are imitated; empty: the bot's."""
    checkpoint: Annotated[int, In("[-1, inf)"), Needs("from_run")] = -1
    """With `from`: the checkpoint, by update number; -1: the newest."""
    greedy: Annotated[bool, Needs("from_run")] = False
    """With `from`: the agent takes its most likely actions instead of sampling."""
    episodes: PositiveInt = 100_000
    """Maximum number of episodes played to generate demonstrations."""
    clone: Annotated[CloningConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: BC)
    eval_episodes: NonNegativeInt = field(default=1000, metadata=FREE)
    """Held-out episodes before and after training, each for sampled and greedy actions; 0: none."""
    run: RunConfig = field(default_factory=lambda: RunConfig(checkpoint_every=0))

    def __post_init__(self):
        super().__post_init__()
        if self.demos and self.from_run:
            raise ValueError(f"--demos is {self.demos} and --from is {self.from_run}: give one of them")

    def experiment(self) -> Any:
        """The learner of the run and its evaluation: an `llmrl_jax.workflows.experiment.Experiment`."""
        from llmrl_jax.systems.glam.clone import make

        return make(self)


@dataclass(frozen=True)
class PostTestConfig(Checked):
    """Settings of `llmrl glam test`: agents and their tests."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Folders of runs, `runs/NAME`."""
    model: str = ""
    """Also a model without RL training (zero-shot, or from `llmrl glam clone`): a folder or hub id. Its prompts are
    those of the first run, or of the preset."""
    random: bool = False
    """Test random actions even if nothing else is tested; they are played beside every other agent."""
    bot: bool = False
    """Also BabyAI's bot, which plans from the part of the grid it has seen."""
    preset: str = ""
    """Without a run: the preset of the prompts and actions (default: glam)."""
    env: str = ""
    """Environment of tests without one of their own; empty: the run's training environment, or the preset's."""
    tests: tuple[str, ...] = ()
    """Tests by name; parts are joined with +, as in go_to+french. Empty: the published tests. No change:
    `no_modification_test`; other words: `other_name_same_categories`, `adj_synonym`, `no_meaning_nouns`,
    `no_meaning_adj`, `no_meaning_words`, `change_intro_first_personne_speaker`, `change_intro_first_personne_agent`;
    other actions: `synonym_actions`, `second_synonym_actions`, `extra_actions`; other levels: `test_tasks`,
    `composition`, `go_to`; another language: `french`."""
    variants: bool = False
    """The training prompt and equivalent ones, in other sentences and another order: instead of the published tests,
    or in addition to `tests`."""
    episodes: PositiveInt = 1000
    """Episodes per test, each for sampled and greedy actions."""
    checkpoint: Annotated[int, In("[-1, inf)")] = -1
    """Checkpoint of the runs, by update number; -1: the newest."""
    seed: int = 0
    """Seed of the episodes."""
    reuse: bool = False
    """Reuse results in tests.json with the same checkpoint, seed and episodes."""
    out: Path = Path("runs/tests")
    """Folder for results that belong to no run."""
    json: bool = False
    """Print the results as JSON; the line after each test then goes to stderr."""

    def __post_init__(self):
        super().__post_init__()
        if not (self.runs or self.model or self.random or self.bot):
            raise ValueError("there is no agent to test: name a run's folder, --model, --random or --bot")
        if self.runs and self.preset:
            raise ValueError(f"preset is {self.preset}, but the settings are those of {self.runs[0]}: leave one out")
        check_seed("seed", self.seed)
