"""Text games: Sokoban and 2048 in the wording of papers about language-model agents, and two games that need notes."""

from typing import TYPE_CHECKING

from envs_jax.lazy import attach
from envs_jax.registry import register


if TYPE_CHECKING:
    from envs_jax.textgames.game2048 import Game2048
    from envs_jax.textgames.notes import Count, Recall
    from envs_jax.textgames.reference import import_state
    from envs_jax.textgames.sokoban import Sokoban
    from envs_jax.textgames.sokoban_solver import solve


__all__ = ["Count", "Game2048", "Recall", "Sokoban", "import_state", "solve"]
__getattr__ = attach(
    __name__,
    {
        "game2048": ["Game2048"],
        "notes": ["Count", "Recall"],
        "reference": ["import_state"],
        "sokoban": ["Sokoban"],
        "sokoban_solver": ["solve"],
    },
)

_SOKOBAN = "envs_jax.textgames.sokoban:Sokoban"
register("SokobanText-v0", _SOKOBAN, about="push a box to its target, 6 x 6 cells, shown as text", text="grid")
register(
    "SokobanText-2boxes-v0",
    _SOKOBAN,
    about="push two boxes to targets, 6 x 6 cells, shown as text",
    text="grid",
    boxes=2,
)
register(
    "Sokoban-small-v0",
    _SOKOBAN,
    about="push two boxes to targets, 7 x 7 cells (gym-sokoban)",
    height=7,
    width=7,
    boxes=2,
    actions="all",
    max_steps=200,
)
register(
    "Sokoban-v1",
    _SOKOBAN,
    about="push four boxes to targets, 10 x 10 cells (gym-sokoban)",
    height=10,
    width=10,
    boxes=4,
    actions="all",
    max_steps=120,
)
register("2048-v0", "envs_jax.textgames.game2048:Game2048", about="slide and merge equal tiles up to 2048")
register(
    "2048Text-v0",
    "envs_jax.textgames.game2048:Game2048",
    about="slide and merge equal tiles up to 2048, shown as text",
    text=True,
)
register("Notes-Recall-v0", "envs_jax.textgames.notes:Recall", about="name a word that was shown some turns ago")
register("Notes-Count-v0", "envs_jax.textgames.notes:Count", about="say how many apples were shown, one thing a turn")
