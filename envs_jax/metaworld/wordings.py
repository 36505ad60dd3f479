"""The wordings of instructions, written for this project; their numbers are those of the paper (2404.09248).

Every level has 20 frames for each of its tasks, and no wording of one level occurs at another: those of level real are
for training, all others are held out.
"""

from __future__ import annotations

from typing import NamedTuple


class Phrases(NamedTuple):
    """The phrases for a task in a frame."""

    do: str
    doing: str
    done: str
    wrong: str = ""
    """A complaint about the state before the task is done; for the tasks of level rephrase."""


PHRASES = {
    "reach": Phrases(
        "move the gripper to the mark",
        "moving the gripper to the mark",
        "the gripper is at the mark",
        "the gripper hangs far away from the mark",
    ),
    "push": Phrases(
        "push the puck to the spot on the table",
        "pushing the puck to the spot on the table",
        "the puck lies on its spot on the table",
        "the puck lies everywhere but on its spot",
    ),
    "pick-place": Phrases(
        "pick up the puck and hold it at the mark",
        "lifting the puck to the mark",
        "the puck is held at the mark",
        "the puck lies on the table and not up at the mark",
    ),
    "button-press": Phrases(
        "press the button", "pressing the button", "the button is pressed", "the button sticks out untouched"
    ),
    "door-unlock": Phrases(
        "unlock the door",
        "turning the lock open",
        "the lock of the door is open",
        "the door is locked and I am shut out",
    ),
    "door-open": Phrases(
        "open the door", "pulling the door open", "the door stands open", "the door is closed in front of me"
    ),
    "window-open": Phrases(
        "slide the window open",
        "sliding the window open",
        "the window is open",
        "no air comes in with this window shut",
    ),
    "faucet-open": Phrases(
        "turn the faucet on", "turning the faucet on", "the faucet is turned on", "no water comes out of the faucet"
    ),
    "coffee-push": Phrases(
        "push the mug under the coffee machine",
        "pushing the mug under the coffee machine",
        "the mug stands under the coffee machine",
        "the mug stands where no coffee can reach it",
    ),
    "coffee-button": Phrases(
        "press the button of the coffee machine",
        "pressing the button of the coffee machine",
        "the coffee machine is switched on",
        "the coffee machine does nothing at all",
    ),
    "reach-wall": Phrases(
        "move the gripper past the wall to the mark",
        "moving the gripper past the wall to the mark",
        "the gripper is at the mark behind the wall",
    ),
    "push-wall": Phrases(
        "push the puck round the wall to its spot",
        "pushing the puck round the wall",
        "the puck lies on its spot behind the wall",
    ),
    "pick-place-wall": Phrases(
        "lift the puck over the wall and hold it at the mark",
        "lifting the puck over the wall",
        "the puck is held at the mark behind the wall",
    ),
    "button-press-wall": Phrases(
        "reach over the wall and press the button",
        "pressing the button behind the wall",
        "the button behind the wall is pressed",
    ),
    "door-lock": Phrases("lock the door", "turning the lock shut", "the lock of the door is shut"),
    "door-close": Phrases("close the door", "pushing the door shut", "the door is closed"),
    "window-close": Phrases("slide the window shut", "sliding the window shut", "the window is shut"),
    "faucet-close": Phrases("turn the faucet off", "turning the faucet off", "the faucet is turned off"),
    "make-coffee": Phrases(
        "make coffee: push the mug under the machine, then press its button",
        "making coffee",
        "the mug stands under the machine and the button is pressed",
    ),
    "locked-door-open": Phrases(
        "unlock the door and then pull it open", "opening the locked door", "the locked door stands open"
    ),
    "hammer": Phrases(
        "drive the nail into the block with the hammer", "hammering the nail in", "the nail is in the block"
    ),
    "soccer": Phrases("score a goal with the ball", "playing the ball into the goal", "the ball is in the goal"),
}

REAL = (
    "{do}",
    "please {do}",
    "now {do}",
    "your task: {do}",
    "could you {do}?",
    "would you {do} for me?",
    "I want you to {do}",
    "I need you to {do}",
    "the robot should {do}",
    "go ahead and {do}",
    "let the arm {do}",
    "make sure that {done}",
    "see to it that {done}",
    "it is time for {doing}",
    "start {doing}",
    "the arm is {doing}",
    "the robot works on {doing}",
    "in the end {done}",
    "finally {done}",
    "the goal is that {done}",
)

REPHRASE = (
    "how annoying, {wrong}",
    "I am tired of this: {wrong}",
    "{wrong}, which drives me mad",
    "why is it that {wrong}?",
    "it bothers me that {wrong}",
    "this cannot stay as it is: {wrong}",
    "once more {wrong}, what a nuisance",
    "look at this mess, {wrong}",
    "I complain again, {wrong}",
    "I can't work like this, {wrong}",
    "{wrong}, and I have waited long enough",
    "what a shame that {wrong}",
    "I am not pleased, {wrong}",
    "still {wrong}, really?",
    "somebody left it like this: {wrong}",
    "{wrong}, and that is not what I asked for",
    "do something, {wrong}",
    "I dislike that {wrong}",
    "it is a pity: {wrong}",
    "{wrong}, and that has to change",
)
"""Complaints."""

EASY = (
    "{do}, if you can",
    "next job: {do}",
    "try to {do}",
    "show me how to {do}",
    "have a go: {do}",
    "what I ask of you is to {do}",
    "help me to {do}",
    "the order is to {do}",
    "carry on and {do}",
    "today we {do}",
    "it would help to {do}",
    "be careful and {do}",
    "take the arm and {do}",
    "use the gripper to {do}",
    "you may {do} now",
    "get ready to {do}",
    "let us {do}",
    "one more thing: {do}",
    "do as I say and {do}",
    "kindly {do}",
)

HARD = (
    "a harder one: {do}",
    "here is a challenge: {do}",
    "can the robot {do}?",
    "prove that you can {do}",
    "work out how to {do}",
    "do what it takes to {do}",
    "this takes care: {do}",
    "plan ahead and {do}",
    "think first, then {do}",
    "I wonder if you can {do}",
    "your hardest job is to {do}",
    "from start to end, {do}",
    "do not stop until {done}",
    "keep at it until {done}",
    "only when {done} is it over",
    "success means that {done}",
    "I expect that {done}",
    "bring it about that {done}",
    "arrange things so that {done}",
    "I will be content once {done}",
)
