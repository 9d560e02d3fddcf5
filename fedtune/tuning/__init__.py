"""One search: space, searcher, schedulers, trainable, driver."""
