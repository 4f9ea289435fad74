"""Who there is: agents and projects."""
