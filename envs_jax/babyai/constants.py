"""MiniGrid's numbers: types, colours, states, directions, actions (`minigrid.core.constants` and `actions`)."""

TYPES = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
UNSEEN, EMPTY, WALL, FLOOR, DOOR, KEY, BALL, BOX, GOAL, LAVA, AGENT = range(11)

COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
RED, GREEN, BLUE, PURPLE, YELLOW, GREY = range(6)

STATES = ("open", "closed", "locked")
OPEN, CLOSED, LOCKED = range(3)

DIRECTIONS = ("right", "down", "left", "up")
DX, DY = (1, 0, -1, 0), (0, 1, 0, -1)

ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done")
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)

VIEW = 7
"""Side of the agent's square view; the agent stands at column 3, row 6."""
