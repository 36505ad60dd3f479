"""Training from a configuration: experiments, online and offline RL, language models, and their memory."""
