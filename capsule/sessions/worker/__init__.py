"""The agent's side of a session: the worker, its command, and the functions of the agent's tools."""
