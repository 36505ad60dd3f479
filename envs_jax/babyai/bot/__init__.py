"""Scripted BabyAI agents: the bot, and a shortest-path expert."""
