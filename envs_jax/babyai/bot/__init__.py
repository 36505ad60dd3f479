"""Who plays BabyAI without learning: the bot, and a shortest-path expert."""
