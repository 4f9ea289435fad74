"""The web page: reads, follows and answers conversations in a browser."""
