"""ELLM: a language model suggests goals, and reaching them is the reward (Du et al., 2302.06692).

How the data flows. All of it is on the device, except for what a chat model answers:

    observation -> suggester -> ids of goals -> those not reached in this episode -> goals of the observation
    action -> caption -> similarity[caption, goals], if above the threshold and the action succeeded -> reward

* A **caption** of a transition is the name of the action, so there are as many as actions, and their ids are the
  actions'. A **goal** is a string with an id: the captions first, then further strings that a model has suggested
  (`goals.Goals`). Sentence embeddings are computed when a goal becomes known, so the reward is a look-up in
  `similarity[caption, goal]`.
* A **suggester** maps an observation to ids of goals (`suggesters`): rules on the device (`oracle`), all or random
  actions (`novelty`, `uniform`), or a table from the state's key to the answers of a chat model (`chat`). The key is
  the 32 bits of the state that reach the prompt. The table has a fixed capacity and sorted keys. Keys without an answer
  are collected while playing (`asking.Collected`), asked between updates, and have no suggestion until then.
* The world is wrapped (`suggested.Suggested`): the goals of each observation are part of it, and the reward is the
  similarity. So every learner, evaluation and recording works without knowing about goals.
* What changes between updates (keys, goals, similarities) is in the parameters of the world, and so in the learner's
  state and its checkpoints. Strings of goals are stored there too, as bytes: an answer of the host depends on its
  request only, and a resumed run has the same bits.
"""
