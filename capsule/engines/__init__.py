"""Where documents live: the interface that the Store uses, and the engines behind it."""
