"""The tools: what a model can call, and what it is answered."""
