"""What a tool answers: its form, what it may cost a model, and the models of its data."""
