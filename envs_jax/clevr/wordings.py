"""The wordings of instructions, written for this project; their numbers are those of the paper (2404.09248).

`{a}` is the ball to move, `{b}` the reference, `{where}` a side, `{way}` a direction. No wording of one level occurs
at another: those of level real are for training, all others are held out.
"""

from __future__ import annotations


NOUN = "the {} ball"

SIDE_PHRASES = (
    ("behind", "at the back of", "on the far side of"),
    ("left of", "to the left of", "on the left-hand side of"),
    ("in front of", "at the front of", "on the near side of"),
    ("right of", "to the right of", "on the right-hand side of"),
)
"""Three phrases for each side, in the order of `SIDES`."""

REAL = (
    "push {a} {where} {b}",
    "move {a} {where} {b}",
    "put {a} {where} {b}",
    "please bring {a} {where} {b}",
    "get {a} to lie {where} {b}",
    "make sure that {a} is {where} {b}",
    "could you push {a} {where} {b}?",
    "could you move {a} {where} {b}?",
    "would you help me put {a} {where} {b}?",
    "is {a} {where} {b} yet?",
    "do you see {a} {where} {b}?",
    "{a} goes {where} {b}",
    "{a} is moving until it is {where} {b}",
    "someone pushes {a} so that it lies {where} {b}",
    "{a} has been pushed {where} {b}",
    "{a} has come to rest {where} {b}",
    "the place of {a} is {where} {b}",
    "{a} should end up {where} {b}",
)
"""18 frames, each with the three phrases of a side: 54 wordings of a relation."""

REPHRASE = (
    (  # behind: dislike of the present order
        "{a} blocks my view of {b}, have it go to the back",
        "I can't stand {a} in the foreground, hide it with {b} before it",
        "it annoys me that {b} is the farther one, so let {a} be the farther one instead",
        "{b} deserves the front seat, send {a} to the rear of it",
        "what a poor arrangement: {a} must be farther from me than {b}",
        "I dislike seeing {a} first, let me see {b} first and {a} past it",
        "trade their depths, {a} in the back and {b} up front",
        "take {a} out of my sight, past {b}",
        "{a} has no business before {b}, reverse that",
        "I am fed up with {a} first and {b} after it, swap the two",
    ),
    (  # left: slow or fast
        "slowly ease {a} over until {b} has it on its left",
        "quickly send {a} off to the left flank of {b}",
        "with great patience, nudge {a} leftward past {b}",
        "in one swift go, drive {a} to where {b} has its left neighbour",
        "gently and without haste, let {a} drift to the west of {b}",
        "hurry, {a} belongs at the left edge of {b}",
        "take your time and slide {a} leftward until {b} is on its right",
        "race {a} across, {b} wants it on the left",
        "little by little, coax {a} to the left flank of {b}",
        "rush {a} leftward, it has to pass {b}",
    ),
    (  # front: spheres and force
        "shove the {A} sphere nearer to me than the {B} sphere",
        "force the {A} orb to the foreground of the {B} orb",
        "thrust the {A} globe this way, before the {B} globe",
        "knock the {A} marble forward of the {B} marble",
        "ram the {A} sphere towards me, ahead of the {B} one",
        "hammer the {A} orb into the spot before the {B} orb",
        "drive the {A} globe hard to my side of the {B} globe",
        "punch the {A} sphere forward till it shields the {B} sphere",
        "fling the {A} marble closer to me than its {B} companion",
        "blast the {A} orb ahead of the {B} one",
    ),
    (  # right: joy
        "how lovely it would be to find {a} on the right of {b}!",
        "hooray, let {a} dance over to the right of {b}!",
        "nothing would please me more than {b} with {a} as its right neighbour",
        "I would be so happy if {a} sat at the right edge of {b}",
        "what fun, {a} gets to roll rightward past {b}!",
        "it would make my day to have {a} to the east of {b}",
        "cheerfully lead {a} to the right flank of {b}",
        "wonderful news, {b} welcomes {a} on its right!",
        "with a smile, guide {a} rightward until {b} is on its left",
        "oh joy, {a} and {b} side by side, with {a} on the right!",
    ),
)
"""Ten wordings of a relation for each side, in the order of `SIDES`: `{A}` and `{B}` are colours alone."""

DIRECTION_PHRASES = ("to the back", "to the left", "to the front", "to the right")

EASY = (
    "one step {way} for {a}",
    "give {a} a single push {way}",
    "just once, tap {a} {way}",
    "{a}: one move {way}",
    "let {a} take a step {way}",
    "a short move of {a} {way}, no more",
    "shift {a} {way} a little",
    "a bit more {way} with {a}",
    "nudge {a} a step {way}",
    "roll {a} {way} once",
    "I would like {a} one step farther {way}",
    "have {a} advance {way} by one push",
    "{way} goes {a}, a single step",
    "start {a} off {way}",
    "budge {a} {way}",
    "can {a} be nudged {way}?",
    "do one thing: {a} {way}",
    "send {a} a short distance {way}",
    "make {a} travel {way} for a moment",
    "one push is enough, {a} should move {way}",
)
"""20 wordings for each side."""

HARD = (
    "arrange {}",
    "set things up with {}",
    "I want {}",
    "see to it that we have {}",
    "rearrange the table: {}",
    "finish with {}",
)
"""Six frames for several relations, which are joined with "and"."""
PART = "{a} {where} {b}"

LINE = (
    "line the balls up from left to right: red, blue, green, purple, cyan",
    "form a row, with red at the left end, then blue, green, purple and cyan",
    "sort all five by colour from left to right, red, blue, green, purple, cyan",
    "make a line that reads red, blue, green, purple, cyan",
    "let red be leftmost and cyan rightmost, with blue, green and purple between them in this order",
    "the balls should queue from the left: red, blue, green, purple and at last cyan",
    "order the row as red, blue, green, purple, cyan",
    "place the five side by side, red first from the left, followed by blue, green, purple, cyan",
    "I want to read red, blue, green, purple, cyan from left to right",
    "put every ball to the right of the one before it, beginning with red: blue, green, purple, cyan",
    "a straight row please: red, blue, green, purple, cyan",
    "string the colours out along the table, red, then blue, then green, then purple, then cyan",
    "from left to right there shall be a red, a blue, a green, a purple and a cyan ball",
    "blue follows red, green follows blue, purple follows green and cyan comes last, all in one row",
    "stretch a row from red on the left to cyan on the right, by way of blue, green and purple",
    "assemble the sequence red, blue, green, purple, cyan across the table",
    "could you range them as red, blue, green, purple, cyan, leftmost first?",
    "line up: red at one, blue at two, green at three, purple at four, cyan at five, counted from the left",
    "turn this mess into a row of red, blue, green, purple and cyan",
    "have the colours appear in the order red, blue, green, purple, cyan along the table",
)
GATHER = (
    "gather all balls around the green one",
    "bring every ball close to the green ball",
    "crowd the others about the green ball",
    "make the green ball the centre of a cluster",
    "everything should huddle near green",
    "collect red, blue, purple and cyan at the green ball",
    "surround the green ball with the remaining four",
    "let no ball stay far from the green one",
    "pack the balls tightly, with green in the middle",
    "the green ball wants company from all the others",
    "draw the four other balls in towards green",
    "push the colours together, green in their midst",
    "herd all the balls to where green is",
    "put red, blue, purple and cyan next to green",
    "cluster up at the green ball",
    "all come together at green, please",
    "shrink the group until everyone touches on green",
    "the green ball is the meeting point of the rest",
    "could you round up the balls beside the green one?",
    "form a ring of four with green inside",
)
"""20 wordings each for the line and for the gathering."""
