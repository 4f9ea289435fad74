"""Store the conversations of agent SDKs as capsules. No module imports an SDK."""
