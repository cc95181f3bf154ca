"""The gateway over HTTP, as OpenAI's clients speak it: completions, models, and how it does."""
