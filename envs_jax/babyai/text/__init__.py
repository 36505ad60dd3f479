"""BabyAI in words: phrasebooks and captions, in English and French."""
