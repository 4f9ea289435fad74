"""The commands of project contexts."""
