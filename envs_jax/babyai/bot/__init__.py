"""Players of BabyAI that do not learn: the bot, and a shortest-path expert."""
