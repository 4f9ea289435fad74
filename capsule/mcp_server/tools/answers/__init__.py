"""The outputs of tools: their data, their form, and what they cost a model."""
