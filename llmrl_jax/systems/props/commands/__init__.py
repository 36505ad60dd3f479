"""ProPS: a language model searches for a policy's parameters; also numeric methods, and its fine-tuning."""

from llmrl_jax.systems.props.commands.finetune import finetune
from llmrl_jax.systems.props.commands.run import list_tasks, run
from llmrl_jax.systems.props.commands.table import table


COMMANDS = {"run": run, "list": list_tasks, "table": table, "finetune": finetune}
