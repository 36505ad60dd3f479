"""ELLM: a language model suggests goals, and reaching them is the reward (Du et al., 2302.06692).

Data flow, all of it on the device, except for what a chat model answers:

    observation -> suggester -> ids of goals -> those not reached in this episode -> goals of the observation
    action -> caption -> similarity[caption, goals], if above the threshold and the action succeeded -> reward

* A `GoalSpec` (`goals`) has the goals of an environment; `crafter` and `housekeep` have those of our two. Goals are
  open-ended or closed-form. One wrapper, `GoalWrapper`, makes the goals of each observation a part of it, and the
  reward that of reaching them. So every learner, evaluation and recording works without knowing about goals.
* Open-ended (`open_goals`): the **caption** of a transition is the name of the action, so there are as many as actions,
  and their ids are the actions'. A **goal** is a string with an id: the captions first, then further strings that a
  model has suggested. Sentence embeddings are computed when a goal becomes known, so the reward is a look-up in
  `similarity[caption, goal]`. Goals come from rules (`oracle`), are all or random actions (`novelty`, `uniform`), or
  are found in a table from the state's key, the 32 bits that reach the prompt, to the answers of a chat model (`chat`).
  The table has a fixed capacity and sorted keys. Keys without an answer are collected during play (`UnansweredKeys`),
  asked between updates, and have no suggestion until then.
* Closed-form (`closed_goals`): a chat model says yes or no to every pair of an object and a place, before training.
* What changes between updates (keys, goals, similarities) is in the parameters of the environment, and so in the
  learner's state and its checkpoints. Strings of goals are stored there too, as bytes: an answer of the host depends on
  its request only, and a resumed run has the same bits.
"""
