"""Pictures of a state from above, and the same in letters."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from envs_jax.housekeep import apartment
from envs_jax.housekeep.apartment import RECEPTACLES, ROOMS
from envs_jax.housekeep.constants import BANDS, CELLS, HEADINGS, HEIGHT, IN_HAND, REACH, WIDTH


if TYPE_CHECKING:
    from PIL import Image, ImageDraw

    from envs_jax.housekeep.env import Housekeep
    from envs_jax.housekeep.state import State

TILE = 24
"""Side of a cell in pixels."""
PANEL = 11
"""Width of the list of objects beside the plan, in cells."""

FLOOR = {
    "kitchen": (247, 231, 206),
    "bathroom": (207, 231, 240),
    "lobby": (232, 228, 220),
    "bedroom": (226, 215, 240),
    "living_room": (214, 234, 209),
}
OPENING, WALL_COLOR, INK, PAPER = (236, 236, 236), (72, 74, 82), (40, 40, 44), (252, 252, 250)
WOOD, DARK_WOOD, METAL, CLOTH, RUG = (214, 182, 140), (184, 146, 106), (196, 202, 210), (150, 170, 205), (222, 178, 168)
GLASS, DOOR_COLOR, FRAME = (140, 200, 235), (130, 90, 60), (214, 180, 80)
COLORS = {
    **dict.fromkeys(("bed", "sofa", "sofa_chair", "basket"), CLOTH),
    **dict.fromkeys(("carpet",), RUG),
    **dict.fromkeys(
        ("fridge", "dishwasher", "oven", "stove", "microwave", "coffee_machine", "sink", "bathtub", "toilet"), METAL
    ),
    **dict.fromkeys(("shelf", "bottom_cabinet", "top_cabinet", "chest", "piano"), DARK_WOOD),
    "window": GLASS,
    "door": DOOR_COLOR,
    "picture": FRAME,
}
RIGHT_COLOR, WRONG_COLOR, HAND_COLOR, AGENT_COLOR = (40, 150, 70), (215, 60, 50), (70, 90, 200), (200, 30, 40)
AIM = ((150, 90, 30), (240, 140, 0), (60, 120, 220))
"""The line of the crosshair, by the height that it looks at."""
FOG = 0.68
"""Brightness of cells out of view."""
CORNERS = ((-0.22, 0.22), (0.0, 0.0), (0.22, -0.22))
"""Where in its cell an object is drawn, by its height: (x, y) from the centre."""


@functools.cache
def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _box(rectangle: apartment.Rectangle, tile: int) -> tuple[int, int, int, int]:
    top, left, rows, columns = rectangle
    return left * tile, top * tile, (left + columns) * tile - 1, (top + rows) * tile - 1


@functools.cache
def _ground(tile: int) -> Image.Image:
    """The plan without words: rooms, walls and furniture."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (WIDTH * tile, HEIGHT * tile), WALL_COLOR)
    draw = ImageDraw.Draw(picture)
    for room, rectangle in ROOMS.items():
        draw.rectangle(_box(rectangle, tile), FLOOR[room])
    for rectangle in apartment.OPENINGS:
        draw.rectangle(_box(rectangle, tile), OPENING)
    low_first = sorted(RECEPTACLES, key=lambda r: (not r.flat, max("lmh".index(x) for x in r.holds + r.blocks)))
    for receptacle in low_first:
        color = COLORS.get(receptacle.kind, WOOD)
        for rectangle in receptacle.cells:
            draw.rectangle(_box(rectangle, tile), color, outline=tuple(int(0.6 * c) for c in color))
    return picture


def _labels() -> dict[apartment.Rectangle, list[int]]:
    """The receptacles to name on each rectangle, the highest first. Those above one another share the place of the
    lowest one."""
    labels: dict[apartment.Rectangle, list[int]] = {}
    lowest_first = sorted(range(len(RECEPTACLES)), key=lambda i: "lmh".index((RECEPTACLES[i].holds or "m")[0]))
    for number in lowest_first:
        for rectangle in RECEPTACLES[number].cells:
            if RECEPTACLES[number].flat:  # furniture may stand on the rest of a carpet
                labels[(rectangle[0], rectangle[1], 1, rectangle[3])] = [number]
                continue
            covered = set(apartment.cells_of(rectangle))
            overlapping = [
                r for r in labels if covered & set(apartment.cells_of(r)) and not RECEPTACLES[labels[r][0]].flat
            ]
            for target in overlapping or [rectangle]:
                labels.setdefault(target, []).insert(0, number)
    return labels


def _wrapped(names: list[str], width: float, size: int) -> list[str]:
    """The words of names in lines no wider than `width`, if a single word is not; each name begins a line."""
    lines = []
    for name in names:
        line = ""
        for word in name.split():
            longer = f"{line} {word}".strip()
            if line and _font(size).getlength(longer) > width:
                lines.append(line)
                longer = word
            line = longer
        lines.append(line)
    return lines


def _write(picture: Image.Image, names: list[str], rectangle: apartment.Rectangle, tile: int) -> None:
    """Names in the middle of a rectangle, in the largest letters that fit; upwards in a narrow, high one."""
    from PIL import Image, ImageDraw

    left, top, right, bottom = _box(rectangle, tile)
    width, height = right - left, bottom - top
    upwards = height > 1.5 * width and width < 2 * tile
    if upwards:
        width, height = height, width
    for size in range(int(0.6 * tile), 6, -1):
        lines = _wrapped(names, width, size)
        if len(lines) * (size + 1) <= height and max(_font(size).getlength(line) for line in lines) <= width:
            break
    label = Image.new("L", (width, height))
    draw = ImageDraw.Draw(label)
    y = (height - len(lines) * (size + 1)) // 2
    for i, line in enumerate(lines):
        draw.text(((width - _font(size).getlength(line)) // 2, y + i * (size + 1) - 1), line, 255, _font(size))
    if upwards:
        label = label.rotate(90, expand=True)
    dark = sum(picture.getpixel((left + 2, top + 2))) < 330  # type: ignore[arg-type]
    picture.paste(PAPER if dark else INK, (left, top), label)


def _middle(cell: int, tile: int, offset: tuple[float, float] = (0.0, 0.0)) -> tuple[float, float]:
    y, x = divmod(cell, WIDTH)
    return (x + 0.5 + offset[0]) * tile, (y + 0.5 + offset[1]) * tile


def _disc(draw: ImageDraw.ImageDraw, center: tuple[float, float], radius: float, color: Any, text: str) -> None:
    x, y = center
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), color, outline=PAPER, width=max(1, int(radius / 7)))
    font = _font(max(7, int(1.35 * radius)))
    draw.text((x, y), text, PAPER, font, anchor="mm")


def _status(env: Housekeep, state: State) -> list[tuple[int, str, str, Any]]:
    """Slot, name, place and colour of every object of the episode."""
    rows, is_seen = [], np.asarray(state.seen_objects)
    for slot, (category, spot) in enumerate(zip(np.asarray(state.category), np.asarray(state.spot))):
        if category < 0:
            continue
        if spot == IN_HAND:
            rows.append((slot, env.object_names[category], "in hand", HAND_COLOR))
        elif is_seen[slot]:
            receptacle = int(env.tables.spots.receptacle[spot])
            color = RIGHT_COLOR if env.correct[category, receptacle] else WRONG_COLOR
            rows.append((slot, env.object_names[category], RECEPTACLES[receptacle].name, color))
        else:
            rows.append((slot, "not seen yet", "", (150, 150, 150)))
    return rows


def _panel(env: Housekeep, state: State, tile: int) -> Image.Image:
    """The objects, what the agent looks at, and the clock."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (PANEL * tile, HEIGHT * tile), PAPER)
    draw, size, y = ImageDraw.Draw(picture), int(0.58 * tile), 0.6 * tile
    for slot, name, location, color in _status(env, state):
        _disc(draw, (0.9 * tile, y + 0.55 * tile), 0.42 * tile, color, str(slot))
        draw.text((1.7 * tile, y), name, INK, _font(size))
        draw.text((1.7 * tile, y + 0.72 * tile), location, color, _font(size - 2))
        y += 1.75 * tile
    aimed = env.tables.hit_receptacle[(int(state.cell) * 4 + int(state.heading)) * 3 + int(state.pitch)]
    in_hand = int(state.held)
    right, present = (int(np.sum(x)) for x in (env.rules.in_place(state), np.asarray(state.category) >= 0))
    lines = [
        f"step {int(state.step_count)}",
        f"looks {BANDS[int(state.pitch)]}: {RECEPTACLES[aimed].name if aimed >= 0 else 'nothing in reach'}",
        f"holds {env.object_names[int(state.category[in_hand])] if in_hand >= 0 else 'nothing'}",
        f"in place: {right} of {present}",
    ]
    y = max(y + 0.5 * tile, (HEIGHT - 6) * tile)
    for line in lines:
        draw.text((0.5 * tile, y), line, INK, _font(size - 1))
        y += tile
    return picture


def render(env: Housekeep, state: State, tile: int = TILE) -> np.ndarray:
    """The image of one state, on the host: the plan, dimmed where the agent does not see, and a list of the objects.

    Objects are discs with the number of their slot, green in a correct place and red elsewhere; in a cell, low ones are
    drawn at the lower left and high ones at the upper right. What has not been seen in this episode has no name, and
    objects are not drawn before. The dashed line is the crosshair: brown low, orange middle, blue high.

    **Arguments:** `env`, a Housekeep environment; `state`, one of its states; `tile`, the side of a cell in pixels.
    **Returns:** uint8 `[30 * tile, 35 * tile, 3]`.
    """
    from PIL import Image, ImageDraw

    picture = _ground(tile).copy()
    words = np.asarray(state.seen_receptacles)
    is_seen = [bool(words[i // 32] >> (i % 32) & 1) for i in range(len(RECEPTACLES))]
    for rectangle, numbers in _labels().items():
        names = [RECEPTACLES[i].kind.replace("_", " ") for i in numbers if is_seen[i]]
        if names:
            _write(picture, names, rectangle, tile)

    cell, heading, pitch = int(state.cell), int(state.heading), int(state.pitch)
    light = np.where(env.tables.sees_cell[cell * 4 + heading].reshape(HEIGHT, WIDTH), 1.0, FOG)
    light = np.kron(light, np.ones((tile, tile)))[..., None]
    dimmed = np.asarray(picture) * light + 70 * (1 - light)
    picture = Image.fromarray(dimmed.astype(np.uint8))
    draw = ImageDraw.Draw(picture)

    spots = env.tables.spots
    for slot, _, _, color in _status(env, state):
        spot = int(state.spot[slot])
        if spot >= 0 and state.seen_objects[slot]:
            center = _middle(int(spots.cell[spot]), tile, CORNERS[int(spots.band[spot])])
            _disc(draw, center, 0.36 * tile, color, str(slot))

    _aim(env, draw, cell, heading, pitch, tile)
    _agent(draw, cell, heading, tile)
    if int(state.held) >= 0:
        _disc(draw, _middle(cell, tile, (0.3, 0.3)), 0.3 * tile, HAND_COLOR, str(int(state.held)))
    frame = Image.new("RGB", ((WIDTH + PANEL) * tile, HEIGHT * tile), PAPER)
    frame.paste(picture, (0, 0))
    frame.paste(_panel(env, state, tile), (WIDTH * tile, 0))
    return np.asarray(frame)


def _aim(env: Housekeep, draw: ImageDraw.ImageDraw, cell: int, heading: int, pitch: int, tile: int) -> None:
    """The line of the crosshair up to what it hits, and a frame around that."""
    content, (dy, dx) = apartment.content()[pitch], HEADINGS[heading]
    end, hit = cell, False
    for _ in range(REACH):
        end += dy * WIDTH + dx
        if not 0 <= end < CELLS or content[end] != apartment.NOTHING:
            hit = True
            break
    x, y = _middle(cell, tile)
    length = abs(end - cell) // (WIDTH if dy else 1)
    for part in range(2 * length):
        a, b = (part + 0.15) / 2, (part + 0.6) / 2
        points = [(x + dx * d * tile, y + dy * d * tile) for d in (a, b)]
        draw.line(points, AIM[pitch], max(1, tile // 10))
    if hit and 0 <= end < CELLS and content[end] >= 0:
        draw.rectangle(_box((*divmod(end, WIDTH), 1, 1), tile), outline=AIM[pitch], width=max(2, tile // 10))


def _agent(draw: ImageDraw.ImageDraw, cell: int, heading: int, tile: int) -> None:
    x, y = _middle(cell, tile)
    dy, dx = HEADINGS[heading]
    corners = ((0.45, 0.0), (-0.36, 0.36), (-0.36, -0.36))
    points = [(x + tile * (a * dx - b * dy), y + tile * (a * dy + b * dx)) for a, b in corners]
    draw.polygon(points, AGENT_COLOR, outline=PAPER)


ARROWS = ">v<^"


def letters(env: Housekeep, state: State) -> str:
    """The plan in letters, on the host: walls `#`, floor a space, carpets `.`, furniture by the first letter of its
    kind at the height that the agent looks at (`-` where it is lower or higher), seen objects by the number of their
    slot, the agent an arrowhead. Below it: where the objects are."""
    content, pitch = apartment.content(), int(state.pitch)
    rows = []
    for cell in range(CELLS):
        receptacle = content[pitch, cell]
        if receptacle == apartment.SOLID:
            rows.append("#")
        elif receptacle >= 0:
            rows.append("." if RECEPTACLES[receptacle].flat else RECEPTACLES[receptacle].kind[0])
        elif env.tables.walkable[cell]:
            rows.append(" ")
        else:
            rows.append("-")
    lines = []
    for slot, name, location, _ in _status(env, state):
        spot = int(state.spot[slot])
        if spot >= 0 and state.seen_objects[slot]:
            rows[int(env.tables.spots.cell[spot])] = str(slot)
            location += f" ({BANDS[int(env.tables.spots.band[spot])]})"
        lines.append(f"{slot} {name}{': ' if location else ''}{location}")
    rows[int(state.cell)] = ARROWS[int(state.heading)]
    plan = ["".join(rows[i : i + WIDTH]) for i in range(0, CELLS, WIDTH)]
    return "\n".join([*plan, f"looks {BANDS[pitch]}", *lines])
