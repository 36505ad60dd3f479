"""BALROG (Paglieri et al., ICLR 2025, arXiv 2411.13543): a language model plays BabyAI and Crafter in text.

Data flow. The environments (`build`) give the state of every episode of a batch; `prompts` words it as BALROG does, by
version; `agents` keeps each episode's history, writes the messages and reads the replies; `eval` sends the messages of
all episodes at once to a chat model, steps the environments, and writes BALROG's files.
"""
