"""Numbers of Housekeep: the grid, headings, heights and actions (ELLM, 2302.06692)."""

HEIGHT, WIDTH = 30, 24
"""Cells of the apartment, outer walls included; a cell is 0.25 m wide, so 7.5 m by 6 m."""
CELLS = HEIGHT * WIDTH
"""Cells are numbered row by row: `y * WIDTH + x`."""
REACH = 12
"""Cells that the crosshair reaches: 3 m."""
SIGHT = 20
"""Cells that the agent sees: 5 m."""

HEADINGS = ((0, 1), (1, 0), (0, -1), (-1, 0))
"""Steps (y, x) to the right, down, left and up, as on the image. A right turn adds 1."""
EAST, SOUTH, WEST, NORTH = range(4)
POSES = CELLS * len(HEADINGS)
"""A pose is `cell * 4 + heading`."""

BANDS = ("low", "middle", "high")
"""Heights: below the knee, table height, above the shoulder. The pitch of the head is the band that it looks at."""
LOW, MIDDLE, HIGH = range(3)

ACTIONS = ("move forward", "turn left", "turn right", "look up", "look down", "grab or release")
FORWARD, LEFT, RIGHT, UP, DOWN, GRAB = range(6)

SLOTS = 10
"""The largest number of objects of an episode; objects are numbered, and slots of absent objects come last."""
IN_HAND, ABSENT = -1, -2
"""In place of a spot: an object in the agent's hand, and a slot without an object."""

DEPTH, BREADTH = 13, 13
"""Rows and columns of cells of the observed image: the agent's row and 12 ahead, 6 columns to each side."""
UNSEEN, FREE, WALL, FURNITURE = range(4)
"""Codes of an image: receptacle `r` is `FURNITURE + r`, and an object of category `k` is `FURNITURE + R + k`."""
