"""Documents as text for people and models."""
