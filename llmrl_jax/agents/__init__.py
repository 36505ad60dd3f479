"""Agents: policies with a model or a network, their evaluation, recordings and demonstrations."""
