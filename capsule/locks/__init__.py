"""Instance locks: how they are taken, refreshed and released, and the Store's object for them."""
