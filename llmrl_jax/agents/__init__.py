"""What acts in a world with a model or a network: policies, their evaluation, recordings and demonstrations."""
