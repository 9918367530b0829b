"""Between a request and its answer: who asks, for what, in which form."""
