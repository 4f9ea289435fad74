"""The agent's side of a session: the worker, its command, and what the agent's tools do."""
